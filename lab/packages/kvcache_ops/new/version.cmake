# nothing that depends on the toolkit's version
