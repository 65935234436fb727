//! Checks that start no lab and no box: they may run beside each other.

mod captures;
mod doctor;
mod report;
mod reproduce;
mod scapy;
mod sim;
mod sweep;
mod taps;
mod tshark;
