"""From local to central: what a trusted shuffler adds, and the authors' estimate beside it. Numbers only.

N users send one record each, a text through PrivUnit and a label through randomized response. A shuffler that
everyone trusts strips who sent what. Then, and only then, there is a central epsilon.

    python examples/shuffled_central_epsilon.py
"""

from dp_forward.privacy import TEXT, Budget, PrivUnit, RandomizedResponse, calibrate, compose, normalise
from dp_forward.privacy.shuffling import paper_estimate, shuffled_gaussian, shuffled_mechanism

USERS, DELTA = 67_349, 1e-5  # the training records of SST-2

print(f"PrivUnit and randomized response, {USERS} users, one record each, through a shuffler:")
for text_epsilon, label_epsilon in ((2.0, 1.0), (4.0, 1.0), (4.0, 2.0)):
    text = calibrate(PrivUnit, Budget(text_epsilon), bound=normalise(1.0), unit=TEXT)
    label = calibrate(RandomizedResponse, Budget(label_epsilon), labels=2)
    record = compose(text, label)  # pure releases add up
    central = shuffled_mechanism(record, users=USERS, delta=DELTA)
    local = f"{record.epsilon():.4g}"
    print(f"  text {text_epsilon:g} and label {label_epsilon:g}, locally {local}. {central.upper.statement}")
    print(f"    {central.lower.statement}")

# The paper reads shuffled Gaussian releases as if every step had drawn its user at random. Its text has the
# sensitivity 2C; its experiments used C. By C, over three epochs, this sigma (for C = 1) is central 8:
SIGMA, EPOCHS = 0.3194, 3
claimed = paper_estimate(DELTA, mu=1 / SIGMA, users=USERS, epochs=EPOCHS)
honest = shuffled_gaussian(mu=2 / SIGMA, users=USERS, delta=DELTA, releases=EPOCHS, with_estimate=False)
print(f"matrix Gaussian, sigma {SIGMA}, {EPOCHS} epochs:")
print(f"  The authors' estimate, by S = C (the authors' experiments) and without a theorem: {claimed:.3g}.")
print(f"  By S = 2C (the text, and the proof): {honest.lower.statement}")
print(f"  {honest.upper.statement}")
