# autom8: a space and a model that Talos makes for a task.
import numpy as np
import talos
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

x, y = load_breast_cancer(return_X_y=True)
x, y = scale(x)[:120].astype("float32"), y[:120].astype("float32")
params = talos.autom8.AutoParams(task="binary", auto=False)
params.layers(max_layers=1)
params.dropout()
params.optimizers("auto")
params.batch_size(min_size=16, max_size=32, steps=2)
params.epochs(min_epochs=1, max_epochs=2, steps=2)
params.neurons(min_neuron=4, max_neuron=8, steps=2)
params.losses(["binary_crossentropy"])
params.last_activations(["sigmoid"])
params.kernel_initializers()
params.activations(["relu"])
params.shapes(["brick"])
params.networks(["dense"])
params.lr("auto")
model = talos.autom8.AutoModel("binary", "automatic").model
scan = talos.Scan(
    x=x, y=y, params=params.params, model=model, experiment_name="automatic", round_limit=3
)
print("RESULT", len(scan.data))
