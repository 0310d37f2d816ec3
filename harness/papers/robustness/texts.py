"""What the robustness page says in words."""

from __future__ import annotations

from typing import Final

INTRODUCTION: Final = (
    "A site writes its update itself, and nobody can look inside. Under rules that weigh sites by their updates "
    "a site that lies may gain weight and then harm. How much, for a requester whose rule is one of these?"
)
LIARS: Final = (
    "The liars know the model, the lists, the opened averages and their own honest updates. The harm is the "
    "direction against their own gradient. **Where sums are not measured** (FedAvg opens nothing; Mallows "
    "averaging opens norms there and measures in rounds of their own, the first and every tenth) they send it "
    "as long as the clip norm, and the disguise only where they are measured. **Where what is summed is "
    "measured** (Weight Erosion, multi-Krum) one vector does both: the disguise, moved in the harmful direction "
    "as far as their honest update would be off.\n\n"
    "Disguises: `reversed` none; `near` the requester's last known direction; `small` a hundredth of their own "
    "update; `copy` the last average; `replay` the last average without their own part, which they take for the "
    "requester's; `opposed` two of them at both sides of that; `oracle` the requester's very update, which "
    "nobody has: the worst case. Before the first sum a liar knows no average, and shows its honest update.\n\n"
    "**share**: of a sum, that is the liars', the mean over rounds. **moved**: how far the requester's last "
    "model is from the one it would have had if they were honest, against the way that one went; the middle "
    "run's, as some models fly off. **log-loss**: on the requester's test part, more than with honest sites, "
    "mean ± standard error over seeds and requesters, paired."
)
LIES_SAY: Final = (
    "What the tables say:\n\n"
    "- **Under Mallows averaging a liar's weight is decided where it is measured, and used where nobody "
    "looks.** Where sites are alike two of ten have FedAvg's weight and do FedAvg's harm, whatever they look "
    "like, unless they look as bad as they are.\n"
    "- **Where sites differ a disguise gains weight.** One of four hospitals gets about twice its honest share "
    "by what it can know; with the requester's very update it gets what its declared samples allow under the "
    "plug-in form, and everything under the raw one. Among ten sites that see other digits liars that have no "
    "weight are in no sum, so they do not learn what to look like.\n"
    "- **Rules that measure what they sum hold better.** Weight Erosion loses little in all three. Multi-Krum "
    "leaves the liars out where sites are alike; where they differ it keeps them in many sums, and what that "
    "costs differs from seed to seed.\n"
    "- **The sites' default policy changes next to nothing here.**\n"
    "- **A local finish takes most of the harm back,** as it goes as far from the shared model as the "
    "requester's own examples say; not all of it, and FedAvg with a finish stands liars as well as Mallows "
    "averaging with one. (With digits the shared rounds are too few to converge, so there the finish gains most "
    "by going on.)\n\n"
    "So Mallows averaging is for sites that may differ and do not attack. Where some may, Weight Erosion is the "
    "safer rule; under any of them a clip norm no longer than honest updates bounds a liar's step, and a local "
    "finish what is left in the end."
)
DISTANCES: Final = (
    "Where pairs are opened, a requester with c accomplices among the sites knows every other site's distance "
    "to c + 1 points that it knows: its own update and theirs; an accomplice may send any vector, so points of "
    "its choice. So it knows the part of x = g - g_0 in the span of c directions exactly, and of the rest the "
    "length: g is somewhere on a sphere at right angles to them, and the sphere's centre is the best guess. If "
    "x points anywhere,\n\n"
    "    error / ||x|| = sqrt(1 - c / D)\n\n"
    "in D dimensions; an accomplice that sends zeros makes g_0 a direction too, after which no guess is worse "
    "than none. The distances among honest sites turn with that sphere and say nothing more. If updates did not "
    "move, R measured rounds would be R c directions, and from R c = D on the update would be known; the table "
    "says how much is left of that when they move.\n\n"
    "Columns, each the middle of ||guess - g|| / ||g|| over honest sites, rounds and seeds (1: no better than "
    "guessing nothing): `one round`; `with the sum`: a sum of the same updates is opened too, as under "
    "multi-Krum, not under Mallows averaging; `all rounds`: the estimate from all of them, updates taken to "
    "move as the requester's own do; `true`: as each site's own do, which nobody knows. `x`: the error of one "
    "round against ||x||, root mean square, beside the formula. Accomplices send their honest updates "
    "(`honest`), random points about the requester's (`random`), or these but for one that sends zeros "
    "(`zeros`)."
)
DISTANCES_SAY: Final = (
    "What the table says:\n\n"
    "- **In one round random points tell what the formula says:** next to nothing, for 28 parameters as for "
    "thousands. Zeros tell how much of an update points along the requester's own: much at heart disease with "
    "full batches, little elsewhere.\n"
    "- **Accomplices' honest updates tell more,** as sites' updates have much in common; the fewer honest sites "
    "are left, the more. With a sum beside the distances the last honest site is known, as it is without them "
    "(least numbers and `assumed_colluders` are against that).\n"
    "- **Over rounds it adds up only if updates hardly move:** full batches, pairs in every round, a small "
    "model, random points. Every tenth round, as Mallows averaging measures, or fresh batches leave little of "
    "it, and for a network there is nothing to add up."
)
