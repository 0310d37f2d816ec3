"""Cox's partial likelihood as a loss: which of those still at risk has the event, in the order of the times.

The risk set of an event is everybody *of the same mini-batch at the same site* whose time is not shorter. So the loss
is stratified by site: examples of two sites are never compared, since their data never meet, and each site has a
baseline hazard of its own, as in a Cox model stratified by centre. Mini-batches stratify once more: a study that wants
a site's full risk sets takes a batch_size as large as its largest site (docs/simulating.md).

Source: Cox 1972, Regression models and life-tables; Breslow 1974, Covariance analysis of censored survival data;
Efron 1977, The efficiency of Cox's likelihood function for censored data
"""

from __future__ import annotations

import torch

from client_agent.tasks.targets import EVENT, TIME


def cox_loss(outputs: torch.Tensor, y: torch.Tensor, *, efron: bool) -> torch.Tensor:
    """The negative log partial likelihood, per event; 0 with a gradient of 0 where nobody has an event.

    Events at one time share Breslow's sum over everybody at risk or, with ``efron``, Efron's, in which the k-th of d
    events counts k / d of all d as no longer at risk.

    Shapes: outputs float32[n, 1], the log hazards; y float32[n, 2], time and event -> a scalar
    """
    hazards = outputs[:, 0]
    order = torch.argsort(y[:, TIME], descending=True, stable=True)
    eta, time, event = hazards[order], y[order, TIME], y[order, EVENT] > 0
    events = int(event.sum())
    if events == 0:
        return hazards.sum() * 0.0
    _, group, sizes = torch.unique_consecutive(time, return_inverse=True, return_counts=True)
    at_risk = torch.logcumsumexp(eta, dim=0)[torch.cumsum(sizes, 0) - 1][group][event]
    if efron:
        at_risk = at_risk + torch.log1p(-_left(eta[event], group[event], at_risk, len(sizes)))
    return (at_risk - eta[event]).sum() / events


def _left(eta: torch.Tensor, group: torch.Tensor, at_risk: torch.Tensor, groups: int) -> torch.Tensor:
    """Efron's share of the risk that left before each event: k / d of the d tied events' hazards, over all at risk.

    Shapes: eta, group, at_risk [events], in the order of group -> [events], each in [0, 1)
    """
    tied = torch.bincount(group, minlength=groups)
    first = torch.cumsum(tied, 0) - tied
    place = torch.arange(len(group), device=group.device) - first[group]
    of_all = torch.exp(eta - at_risk)
    shared = torch.zeros(groups, dtype=eta.dtype, device=eta.device).index_add(0, group, of_all)
    return (place / tied[group].to(eta.dtype)) * shared[group].clamp(max=1.0)
