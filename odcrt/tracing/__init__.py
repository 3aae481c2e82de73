"""What a rank did and when: spans, clocks, and where compute lies between transfers."""
