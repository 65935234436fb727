//! Tests of the switch in virtual time.

mod flow_control;
mod switch;
