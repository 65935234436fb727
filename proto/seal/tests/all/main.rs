//! Tests of the seal: sessions, keys, hostile datagrams, cleartext RDMA.

mod clear;
mod documentation;
mod hostile;
mod line;
mod net;
mod sessions;
mod transports;
