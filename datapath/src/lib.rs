//! Load for boxes in real time: what a packet costs in a box, and how many it passes on.
//!
//! A [`Row`] is a [`Load`] with stages between its two ports: frames leave at the requesters' port,
//! pass the stages, and arrive at the responders' port; acknowledgements go the other way. All of
//! it runs in one thread, to completion, so that the time inside each stage is known; a row without
//! stages is what the load costs by itself, or has its box in another process. A stage is a node,
//! driven by [`longhaul_host::turn`] as a box's driver does, or a [`Bridge`] that only passes
//! frames on.
//!
//! The load is made to be cheap: frames are prebuilt, of which the PSN, the request for an
//! acknowledgement and the ICRC change; and the ICRC comes out of tables, because it is linear. The
//! responders count, look at PSNs, check every 1024th ICRC, and acknowledge when asked to,
//! coalesced as a NIC does.
//!
//! An [`End`] is an end of queue pairs instead: the software RNIC at a port, used as a program uses
//! it. It tells what its steps take, and what the time in them goes into.
//!
//! The load does not send READs, atomics or connection management, repairs loss by going back
//! alone, and does not choose what is measured: that is the business of `longhaul-measure`.
#![forbid(unsafe_code)]

mod end;
mod load;
mod meter;
mod packets;
mod ring_end;
mod row;
mod stage;
mod trial;
mod watch;

pub use end::{
    End, EndCounters, EndError, Introduction, MEMORY_MAX, Operation, QPS_MAX, Role, StepTicks,
    TransferConfig, TransferError,
};
pub use load::{Load, LoadConfig, LoadCounters, LoadError};
pub use meter::{Counts, HardwareCounters, Ticks, processor_time, resident_bytes};
pub use packets::{FLOWS_MAX, PAYLOAD_MAX};
pub use ring_end::RingEnd;
pub use row::{Failure, Measured, Plan, Progress, Row, StageCost};
pub use stage::{Bridge, NodeStage, Seen, Stage};
pub use trial::{Trial, TrialPlan};
pub use watch::{PartTicks, WorkPart};
