"""The room of Dynamo: records of its bugs, predicates, findings and planted bugs."""
