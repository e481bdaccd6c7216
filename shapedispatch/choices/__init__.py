"""What is known of the calls of one dispatcher, from where, and how what is not known is learned from them."""
