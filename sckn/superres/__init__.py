"""Super-resolution, section 4.2: photographs made larger by a kernel network that learned what bicubic interpolation loses."""
