//! Tests of the seal: sessions, keys, hostile datagrams, RDMA that must not pass in the clear.

mod clear;
mod documentation;
mod hostile;
mod line;
mod net;
mod sessions;
mod transports;
