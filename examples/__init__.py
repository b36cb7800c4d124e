"""Programs that run the example project: `demo` from one end to the other, `dev` to look around in."""
