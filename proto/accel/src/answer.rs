//! The acknowledge packets that a box sends to requesters in the responder's name.

use longhaul_node::{Frame, Payload, Trailer};
use longhaul_units::{Msn, Psn, Qpn};
use longhaul_wire::{Aeth, Bth, Head, Opcode, PKEY_DEFAULT, Packet, PathTemplate, Syndrome};

const ECN_MASK: u8 = 3;
const ECN_CE: u8 = 3;
const ECN_ECT0: u8 = 2;

/// Format of the frames to a requester, copied from the responder's own frames once seen.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Headers of the last acknowledge packet sent, or equivalent ones: only PSN, syndrome and MSN
    /// vary.
    head: Option<Head>,
    /// Copied from the responder's own frames, not deduced from requests.
    real: bool,
    migreq: bool,
    pkey: u16,
}

impl Answer {
    pub(crate) fn new(migreq: bool) -> Self {
        Answer { head: None, real: false, migreq, pkey: PKEY_DEFAULT }
    }

    /// True until a frame of the responder was seen.
    pub(crate) fn is_deduced(&self) -> bool {
        !self.real
    }

    /// Deduces the return path from a request, until a frame of the responder shows it.
    #[inline]
    pub(crate) fn learn_from_request(&mut self, packet: &Packet<'_>) {
        if self.head.is_none() {
            self.pkey = packet.bth().pkey;
            self.head = Some(self.acknowledge_on(&template(packet, true)));
        }
    }

    /// Copies addresses, ports and flags from a frame of the responder.
    #[inline]
    pub(crate) fn learn_from_responder(&mut self, packet: &Packet<'_>) {
        let bth = packet.bth();
        let same = self.real
            && (self.migreq, self.pkey) == (bth.migreq, bth.pkey)
            && self.head.as_ref().is_some_and(|head| is_on(head.bytes(), packet));
        if !same {
            (self.migreq, self.pkey) = (bth.migreq, bth.pkey);
            self.head = Some(self.acknowledge_on(&template(packet, false)));
            self.real = true;
        }
    }

    #[cold]
    fn acknowledge_on(&self, path: &PathTemplate) -> Head {
        let mut bth = Bth::new(Opcode::RC_ACK, Qpn::default(), Psn::default());
        bth.migreq = self.migreq;
        bth.pkey = self.pkey;
        let mut head = Head::begin(path, &bth);
        head.push_aeth(&Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::default() });
        head.finish(path, 0);
        head
    }

    /// Builds an acknowledge packet and passes it to `send`. Returns `false` if the return path is
    /// unknown.
    #[inline]
    pub(crate) fn send(
        &mut self,
        requester: Qpn,
        psn: Psn,
        syndrome: Syndrome,
        msn: Msn,
        send: impl FnOnce(&Frame<'_>),
    ) -> bool {
        let Some(head) = &mut self.head else { return false };
        head.acknowledge_again(requester, psn, &Aeth { syndrome, msn });
        let trailer = Trailer::Sealed { pad_len: 0 };
        send(&Frame { head: head.bytes(), payload: Payload::EMPTY, trailer });
        true
    }
}

/// True if `packet` has the addresses and the source port of the frame with the headers `known`.
#[inline]
fn is_on(known: &[u8], packet: &Packet<'_>) -> bool {
    let (layout, seen) = (packet.layout(), packet.head());
    // Fast path for untagged IPv4: Ethernet, addresses and port are at constant offsets.
    if (layout.ip, layout.udp, layout.is_ipv6) == (14, 34, false)
        && let (Some(known), Some(seen)) = (known.first_chunk::<36>(), seen.first_chunk::<36>())
    {
        return known[..14] == seen[..14] && known[26..] == seen[26..];
    }
    let addresses = if layout.is_ipv6 { 8..40 } else { 12..20 };
    let places = [
        0..layout.ip,
        layout.ip + addresses.start..layout.ip + addresses.end,
        layout.udp..layout.udp + 2,
    ];
    places.into_iter().all(|place| known.get(place.clone()) == seen.get(place))
}

/// Path template of `packet`, without its congestion mark, which concerns that packet only.
pub(crate) fn template(packet: &Packet<'_>, reversed: bool) -> PathTemplate {
    let mut path = packet.path();
    if path.traffic_class & ECN_MASK == ECN_CE {
        path.traffic_class = path.traffic_class & !ECN_MASK | ECN_ECT0;
    }
    PathTemplate::new(&if reversed { path.reversed() } else { path })
}
