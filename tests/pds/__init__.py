"""The AT Protocol reference PDS as a test peer: a real firehose, a real PLC directory, real repositories."""
