"""What the tests of deploy/kubernetes share."""
