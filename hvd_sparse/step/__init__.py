"""The processing of gradients in one step, and the state that is kept between steps."""
