# Models, spaces and data that come with Talos, in one scan, as its own first test does it.
import talos as ta

x, y = ta.templates.datasets.iris()
x = x[:90]
y = y[:90]
p = ta.templates.params.iris()
for key in p.keys():
    p[key] = [p[key][0]] if isinstance(p[key], list) else [p[key][0]]
p["epochs"] = [2]
p["batch_size"] = [16, 30]
scan = ta.Scan(
    x,
    y,
    p,
    ta.templates.models.iris,
    "templates",
    permutation_filter=lambda p: p["batch_size"] < 150,
)
report = ta.Analyze(scan)
print("RESULT", len(scan.data), report.rounds(), sorted(scan.data.columns))
