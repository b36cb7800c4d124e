"""Programs that run the example project: `demo` runs all steps, `dev` starts the services to explore."""
