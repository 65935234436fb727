//! Checks that start no lab and no box, so that they may run concurrently.

mod acknowledged_writes;
mod captures;
mod doctor;
mod export;
mod recordings;
mod report;
mod reproduce;
mod scapy;
mod sim;
mod sweep;
mod tshark;
