//! A stranger: a box of the attacker's, at its own address, with any box number.

use crate::attacker::OWN;
use crate::fleet::address_of;
use crate::forge::{bytes_of, header_of, path};
use crate::stage::Stage;
use longhaul_node::{Frame, Node, Side, Transmit};
use longhaul_seal::{PeerConfig, PrivateKey, Seal, Sealed};
use longhaul_units::{Psn, Qpn};
use longhaul_wan::format::{DatagramKind, HelloStep};
use longhaul_wan::{Config, Hello, INNER, Seed, Transport};
use longhaul_wire::{Bth, Head, Opcode};
use std::net::IpAddr;

/// Records transmitted frames as bytes.
#[derive(Default)]
struct Tap(Vec<(Side, Vec<u8>)>);

impl Transmit for Tap {
    fn room(&mut self, _side: Side) -> usize {
        usize::MAX
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        self.0.push((side, bytes_of(frame)));
    }
}

/// The attacker's box.
pub struct Stranger {
    pub node: Sealed<Transport>,
    /// Site whose box it talks to.
    pub target: usize,
    address: IpAddr,
    /// Session number at that box, once accepted.
    pub accepted: Option<u32>,
}

impl Stranger {
    /// With a box number and a seed; those of a genuine box also yield its instance.
    pub fn new(target: usize, box_id: u64, seed: Seed) -> Stranger {
        let transport = Transport::new(Config { box_id, seed, ..Config::default() });
        let node = Sealed::new(transport.expect("valid"), None);
        Stranger { node, target, address: OWN, accepted: None }
    }

    /// With the box number of the other site.
    pub fn in_the_name_of_the_other(target: usize, run: u64) -> Stranger {
        let other = 1 - target as u64;
        Stranger::new(target, 1 + other, Seed::of_scenario(run << 16 | other))
    }

    /// With a key of its own, and the public key of the target box.
    pub fn with_key(mut self) -> Stranger {
        let far = crate::fleet::boxes::key(self.target).public();
        let peer = PeerConfig { name: "victim".into(), public_key: far, preshared_key: None };
        let own = PrivateKey::generate(&Seed::new([99; 32]));
        let config = longhaul_seal::Config::new(own, vec![peer], Seed::new([98; 32]));
        let transport = Transport::new(self.node.node().config().clone()).expect("valid");
        self.node = Sealed::new(transport, Seal::new(config).expect("valid"));
        self
    }

    fn give(&mut self, stage: &Stage, side: Side, bytes: &[u8]) {
        let head = Head::copy_of(bytes);
        let frame = Frame::received(&head, bytes).unwrap_or_else(|_| Frame::opaque(bytes));
        self.node.handle_frame(stage.fleet.now(), side, &frame);
    }

    /// Receives the datagrams to its address, and lets its box act. It searches for a box at the
    /// site's host as soon as it may.
    pub fn turn(&mut self, stage: &mut Stage) {
        let now = stage.fleet.now();
        // Its box draws one more value first, so that with a genuine box's seed only the instance
        // is equal.
        let to_nobody = IpAddr::from([10, 66, 1, 1]);
        let wanted = [to_nobody, address_of(self.target)];
        let asks = if self.accepted.is_none() { wanted.len() } else { 0 };
        for destination in wanted.into_iter().take(asks) {
            let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0xffff), Psn::new(0));
            let bytes = crate::forge::packet(&path(self.address, destination), &bth, None, &[]);
            self.give(stage, INNER, &bytes);
        }
        let heard = std::mem::take(&mut stage.tally.borrow_mut().heard);
        for bytes in heard {
            self.note(&bytes);
            self.give(stage, 1, &bytes);
        }
        self.node.handle_timeout(now);
        let mut tap = Tap::default();
        self.node.poll_transmit(now, &mut tap);
        for (side, bytes) in tap.0 {
            if side == 1 {
                stage.send(self.target, bytes);
            }
        }
    }

    fn note(&mut self, bytes: &[u8]) {
        if header_of(bytes).is_some_and(|header| header.kind == DatagramKind::Hello) {
            let hello = Hello::read(&bytes[crate::forge::AT + longhaul_wan::format::HEADER_LEN..]);
            let accepting = hello.filter(|hello| hello.step == HelloStep::Accept);
            self.accepted = accepting.map(|hello| hello.session).or(self.accepted);
        }
    }
}
