"""The API process's ends of the channels to the connector in the engine's processes."""
