"""What a trace follows that no guard of Dynamo's would see at a later call: guarded here, or the trace is not used."""
