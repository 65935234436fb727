//! Tests of the planner: plans, published figures, figures of the simulator.

mod messages;
mod migration;
mod packets;
mod plans;
mod published;
mod simulated;
mod storage;
mod table;
