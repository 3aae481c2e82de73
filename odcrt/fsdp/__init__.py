"""On-demand communication, and FSDP's own, put under an FSDP2 model: handles, communication objects, layouts."""
