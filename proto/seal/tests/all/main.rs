//! Tests of the seal: sessions, keys, hostile datagrams, RDMA that must not pass in the clear.

mod clear;
mod hostile;
mod line;
mod net;
mod sessions;
mod transports;
