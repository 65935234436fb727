//! Tests of the software RNIC: verbs, transfers over impaired wires, a model of random calls.

mod atomics;
mod completions;
mod congestion;
mod datagrams;
mod failures;
mod flow_control;
mod many_qps;
mod model;
mod neighbours;
mod pair;
mod port;
mod shared_receives;
mod transfers;
mod unreliable;
mod verbs;
