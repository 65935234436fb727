//! One datagram for a box that seals, from a stranger on the WAN.

use longhaul_node::{Frame, Node, Side, Transmit};
use longhaul_seal::{Config, PeerConfig, PrivateKey, Seal, Seed};
use longhaul_units::Instant;
use longhaul_wire::{Head, Udp};

/// Ethernet, IPv4 and UDP headers to the port, with lengths to be filled in.
const HEADERS: [u8; 42] = [
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 2, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0,
    0, 1, 10, 0, 1, 1, 0xc0, 0, 0x12, 0xbd, 0, 8, 0, 0,
];

struct Out {
    len: usize,
}

impl Transmit for Out {
    fn room(&mut self, _side: Side) -> usize {
        usize::MAX
    }
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        assert_eq!(side, Seal::wan(0), "handed inside");
        assert!(frame.len() <= self.len, "an answer of {} bytes to {}", frame.len(), self.len);
    }
}

/// `data` is the UDP payload. None of it is delivered inside, the datagram is counted once, and no
/// state remains.
pub fn sealed(data: &[u8]) {
    let data = &data[..data.len().min(16_384)];
    let key = |n: u8| PrivateKey::generate(&Seed::new([n; 32]));
    let peer = PeerConfig { name: "far".into(), public_key: key(2).public(), preshared_key: None };
    let Ok(mut node) = Seal::new(Config::new(key(1), vec![peer], Seed::new([3; 32]))) else {
        return;
    };
    let mut bytes = [&HEADERS[..], data].concat();
    let udp = Udp::find(&bytes).expect("UDP");
    assert!(udp.lengthen(&mut bytes, data.len() as i32));
    let head = Head::copy_of(&bytes);
    let frame = Frame::received(&head, &bytes).expect("not RoCE's port");
    node.handle_frame(Instant::from_ns(1), Seal::wan(0), &frame);
    node.poll_transmit(Instant::from_ns(1), &mut Out { len: bytes.len() });
    let counters = node.counters();
    assert_eq!(counters.drops.total() + counters.answers_sent, 1, "{counters:?}");
    assert_eq!(node.poll_timeout(), None, "something is kept");
}
