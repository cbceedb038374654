"""Files of a secure deployment on Flower, and checks of them on every machine."""
