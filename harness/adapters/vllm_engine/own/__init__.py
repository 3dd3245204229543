"""Connector classes of users, `package.module:Class`, in place of the connectors that vLLM has.

In: a class derived from `KVConnectorBase_V1` and its options. Out: its settings, its traits, and
the device's view of its copies, whatever it does. Imports vLLM, torch and the class.
"""
