//! The model of two boxes, explored within bounds.

mod explored;
mod pair;
mod session;
