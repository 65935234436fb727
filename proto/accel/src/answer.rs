use longhaul_node::{Frame, Payload, Trailer};
use longhaul_units::{Msn, Psn, Qpn};
use longhaul_wire::{Aeth, Bth, Head, Opcode, PKEY_DEFAULT, Packet, PathTemplate, Syndrome};

const ECN_MASK: u8 = 3;
const ECN_CE: u8 = 3;
const ECN_ECT0: u8 = 2;

/// How frames to a requester look: what the real responder sends, as far as it was seen.
#[derive(Debug)]
pub(crate) struct Answer {
    path: Option<PathTemplate>,
    /// `path` is that of real frames of the responder, not deduced from requests.
    real: bool,
    migreq: bool,
    pkey: u16,
}

impl Answer {
    pub(crate) fn new(migreq: bool) -> Self {
        Answer { path: None, real: false, migreq, pkey: PKEY_DEFAULT }
    }

    /// True until a real frame of the responder was seen.
    pub(crate) fn is_deduced(&self) -> bool {
        !self.real
    }

    /// Deduces the way back from a request, as long as no real frame showed it.
    #[inline]
    pub(crate) fn learn_from_request(&mut self, packet: &Packet<'_>) {
        if self.path.is_none() {
            self.path = Some(template(packet, true));
            self.pkey = packet.bth().pkey;
        }
    }

    /// Takes addresses, ports and flags from a real frame of the responder.
    #[inline]
    pub(crate) fn learn_from_responder(&mut self, packet: &Packet<'_>) {
        let bth = packet.bth();
        self.migreq = bth.migreq;
        self.pkey = bth.pkey;
        let same = self.real && self.path.as_ref().is_some_and(|path| is_on(path, packet));
        if !same {
            self.path = Some(template(packet, false));
            self.real = true;
        }
    }

    /// Builds an acknowledge packet and hands it to `send`. False when the way back is not known.
    pub(crate) fn send(
        &self,
        requester: Qpn,
        psn: Psn,
        syndrome: Syndrome,
        msn: Msn,
        send: impl FnOnce(&Frame<'_>),
    ) -> bool {
        let Some(path) = &self.path else { return false };
        let mut bth = Bth::new(Opcode::RC_ACK, requester, psn);
        bth.migreq = self.migreq;
        bth.pkey = self.pkey;
        let mut head = Head::begin(path, &bth);
        head.push_aeth(&Aeth { syndrome, msn });
        let pad_len = head.finish(path, 0);
        send(&Frame { head: head.bytes(), payload: Payload::EMPTY, trailer: Trailer::Sealed { pad_len } });
        true
    }
}

/// True when `packet` came with the addresses and the source port of `path`.
fn is_on(path: &PathTemplate, packet: &Packet<'_>) -> bool {
    let layout = packet.layout();
    let (known, seen) = (path.bytes(), packet.head());
    let addresses =
        if layout.is_ipv6 { layout.ip + 8..layout.ip + 40 } else { layout.ip + 12..layout.ip + 20 };
    known.len() == layout.udp + 8
        && known[..layout.ip] == seen[..layout.ip]
        && known[addresses.clone()] == seen[addresses]
        && known[layout.udp..layout.udp + 2] == seen[layout.udp..layout.udp + 2]
}

/// A congestion mark says something about the packet that carried it, not about the ones built here.
fn template(packet: &Packet<'_>, reversed: bool) -> PathTemplate {
    let mut path = packet.path();
    if path.traffic_class & ECN_MASK == ECN_CE {
        path.traffic_class = path.traffic_class & !ECN_MASK | ECN_ECT0;
    }
    PathTemplate::new(&if reversed { path.reversed() } else { path })
}
