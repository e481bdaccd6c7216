"""From a function to code, without running it: Dynamo, AOTAutograd, Inductor, and their private names. Which builds
are wanted is not known here."""
