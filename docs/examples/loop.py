"""A training loop of one's own, with an optimizer that peakcast does not know."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)).cuda()
optimizer = torch.optim.NAdam(model.parameters())
for _step in range(3):
    batch = torch.randn(4096, 2048, device="cuda")
    loss = (model(batch) - batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
