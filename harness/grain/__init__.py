"""Mallows averaging with weights of their own for every layer, and in a scaled metric: plain simulation alone.

blocks       the flat vector cut into layers, and a choice of weights for each
grained_run  a case's study under local training, FedAvg and Mallows averaging by model and by layer
costs        what sketches of every layer would cost between the servers
"""
