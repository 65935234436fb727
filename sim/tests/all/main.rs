//! Tests of the simulator: published figures, flow control, whole boxes, determinism,
//! storage, migration.

mod connections;
mod determinism;
mod flow_control;
mod lossy_wan;
mod migration;
mod modes;
mod network;
mod published;
mod sealing;
mod storage;
mod unreliable;
mod wan_box;
mod wan_paths;
