"""Commands of the command line, one module each; a module's ``register(app)`` adds its command to the application."""
