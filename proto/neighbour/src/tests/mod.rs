//! The state machine against scripts of bytes, in virtual time.

mod hostile;
mod own_addresses;
mod questions;
mod wire_scripts;

use crate::{Address, Asks, Config, Neighbours, Outgoing, Resolution};
use longhaul_units::{Duration, Instant};
use longhaul_wire::MacAddr;
use std::net::IpAddr;

pub(crate) const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(crate) const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
pub(crate) const OTHER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn address(text: &str, prefix_len: u8) -> Address {
    Address { ip: ip(text), prefix_len }
}

/// 10.0.0.1/24 behind 10.0.0.254, and fd00::1/64 without a gateway.
pub(crate) fn config() -> Config {
    let mut config = Config::new(OUR_MAC, address("10.0.0.1", 24));
    config.addresses.push(address("fd00::1", 64));
    config.gateways.push(ip("10.0.0.254"));
    config
}

/// A state machine and the time.
pub(crate) struct Host {
    pub neighbours: Neighbours,
    pub now: Instant,
}

impl Host {
    pub fn new() -> Self {
        Host::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config();
        change(&mut config);
        Host { neighbours: Neighbours::new(config), now: Instant::from_ns(1) }
    }

    pub fn told_by_owner() -> Self {
        Host::with(|config| config.asks = Asks::Owner)
    }

    pub fn ask(&mut self, peer: &str) -> Resolution {
        self.neighbours.ask(self.now, ip(peer))
    }

    pub fn look_up(&self, peer: &str) -> Resolution {
        self.neighbours.look_up(ip(peer))
    }

    pub fn hears(&mut self, frame: &[u8]) -> bool {
        self.neighbours.handle_frame(self.now, frame, true)
    }

    /// The frames that are due, as hexadecimal text.
    pub fn sent(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.neighbours.poll_frame()).map(|frame| text(&frame)).collect()
    }

    pub fn silent(&mut self) {
        assert_eq!(self.sent(), [""; 0]);
    }

    /// Advances time, deadline by deadline, and returns the frames sent.
    pub fn wait(&mut self, ms: u64) -> Vec<String> {
        let end = self.now + Duration::from_ms(ms);
        let mut sent = Vec::new();
        while let Some(due) = self.neighbours.poll_timeout().filter(|due| due.at <= end) {
            assert!(due.at >= self.now, "a deadline in the past");
            self.now = due.at;
            self.neighbours.handle_timeout(due.at);
            sent.extend(self.sent());
        }
        self.now = end;
        sent
    }
}

pub(crate) fn text(frame: &Outgoing) -> String {
    frame.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hexadecimal text, with blanks for the eye.
pub(crate) fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

pub(crate) fn packed(text: &str) -> String {
    text.split_whitespace().collect()
}

/// An ARP message of `mac` at `sender` about `target`.
pub(crate) fn arp(operation: u8, mac: MacAddr, sender: &str, target: &str) -> Vec<u8> {
    let octets = |text: &str| match ip(text) {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(_) => panic!("{text}"),
    };
    let mut frame = vec![0xff; 6];
    frame.extend_from_slice(&mac.0);
    frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend_from_slice(&mac.0);
    frame.extend_from_slice(&octets(sender));
    frame.extend_from_slice(&OUR_MAC.0);
    frame.extend_from_slice(&octets(target));
    // As short frames are on a wire.
    frame.resize(60, 0);
    frame
}

pub(crate) fn reply(mac: MacAddr, sender: &str) -> Vec<u8> {
    arp(2, mac, sender, "10.0.0.1")
}

pub(crate) fn request(mac: MacAddr, sender: &str, target: &str) -> Vec<u8> {
    arp(1, mac, sender, target)
}
