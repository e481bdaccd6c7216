"""When a build is valid: Dynamo's guards that a key does not imply, and guards on what Dynamo takes for constant.
What a key holds stands in `keys`."""
