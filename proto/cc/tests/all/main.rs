//! Tests of congestion control in virtual time.

mod dcqcn;
mod limiter;
mod path_rate;
