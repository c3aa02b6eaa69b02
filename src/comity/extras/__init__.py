"""Small extensions, and trackers. The engine loads each by its name when a run asks for it.

refit      last rounds on the validation samples too
bounds     sketches, caps on declared sizes, clipping of updates
attacks    malicious clients
losses     training losses of the model as received, for rules that ask for them
trials     clients try steps before one is taken
validation S-acc, G-acc and the common model on validation samples
newcomers  clients that join after training
trackers   TensorBoard, Weights & Biases, MLflow
"""
