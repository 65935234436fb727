//! Prebuilt packets: of a WRITE's frame only the PSN, the request for an acknowledgement and the
//! ICRC change.
//!
//! A CRC is linear: turning bits of a message over turns over bits of its CRC that depend on their
//! place alone. So the ICRC of each packet is that of the flow's packet with PSN 0, and a table
//! entry for each byte of the PSN.

use longhaul_node::{Frame, Payload, Trailer};
use longhaul_units::{Msn, Psn, Qpn, RKey};
use longhaul_wire::{
    Aeth, Bth, Head, Layout, MacAddr, NakCode, Opcode, Path, PathTemplate, Reth, Split, Syndrome,
    icrc, split,
};

/// The most flows of one load: PSNs of flows start as far apart as that they are told from each
/// other.
pub const FLOWS_MAX: u32 = 16_384;
/// The longest payload of a packet, in bytes: the largest path MTU.
pub const PAYLOAD_MAX: usize = 4096;

/// Where the BTH stands: Ethernet, IPv4 and UDP are before it.
const BTH: usize = 42;
const DEST_QP: usize = BTH + 5;
const ACK_REQUEST: usize = BTH + 8;
const PSN: usize = BTH + 9;
const SYNDROME: usize = BTH + 12;

const RESPONDER_QPN: u32 = 0x1000;
const REQUESTER_QPN: u32 = 0x80_0000;

/// Flows between two hosts: fewer than a box learns from traffic between two of them.
const FLOWS_PER_HOSTS: u32 = 32;

/// The way of a flow's requests: each [`FLOWS_PER_HOSTS`] have two hosts of their own.
fn path_of(flow: u32) -> Path {
    let [_, _, high, low] = (1 + flow / FLOWS_PER_HOSTS).to_be_bytes();
    Path {
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        source_ip: [10, 77, high, low].into(),
        destination_ip: [10, 78, high, low].into(),
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 0xc123,
    }
}

fn psn_at(frame: &[u8]) -> Psn {
    Psn::new(u32::from_be_bytes([0, frame[PSN], frame[PSN + 1], frame[PSN + 2]]))
}

fn flow_at(frame: &[u8], first_qpn: u32, flows: u32) -> Option<u32> {
    let qpn = u32::from_be_bytes([0, frame[DEST_QP], frame[DEST_QP + 1], frame[DEST_QP + 2]]);
    qpn.checked_sub(first_qpn).filter(|flow| *flow < flows)
}

/// A request, as it arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) flow: u32,
    pub(crate) psn: Psn,
    pub(crate) wants_ack: bool,
}

/// WRITEs of one packet each, of one size, for a number of flows.
pub(crate) struct Writes {
    flows: u32,
    /// Headers of each flow's packet with PSN 0, one after the other.
    heads: Vec<u8>,
    head_len: usize,
    /// ICRC of each.
    icrcs: Vec<u32>,
    /// With its pad.
    payload: Vec<u8>,
    /// What each byte of the PSN, from the first, turns over in the ICRC.
    of_psn: Box<[[u32; 256]; 3]>,
    /// What the request for an acknowledgement turns over.
    of_ack_request: u32,
}

impl Writes {
    /// `flows` from 1 to [`FLOWS_MAX`], `payload_bytes` from 1 to [`PAYLOAD_MAX`]; the caller has
    /// checked.
    pub(crate) fn new(flows: u32, payload_bytes: usize) -> Self {
        let mut payload: Vec<u8> = (0..payload_bytes).map(|at| (at * 7 + at / 251) as u8).collect();
        payload.resize(payload_bytes.next_multiple_of(4), 0);
        let mut writes = Writes {
            flows,
            heads: Vec::new(),
            head_len: 0,
            icrcs: Vec::with_capacity(flows as usize),
            payload,
            of_psn: Box::new([[0; 256]; 3]),
            of_ack_request: 0,
        };
        for flow in 0..flows {
            let template = PathTemplate::new(&path_of(flow));
            let bth = Bth::new(Opcode::RC_WRITE_ONLY, Qpn::new(RESPONDER_QPN + flow), Psn::new(0));
            let mut head = Head::begin(&template, &bth);
            head.push_reth(&Reth {
                virtual_address: u64::from(flow) << 20,
                rkey: RKey(7),
                len: payload_bytes as u32,
            });
            head.finish(&template, payload_bytes);
            writes.head_len = head.bytes().len();
            writes.heads.extend_from_slice(head.bytes());
            let icrc = writes.icrc(head.bytes());
            writes.icrcs.push(icrc);
        }
        writes.find_differences();
        writes
    }

    fn icrc(&self, head: &[u8]) -> u32 {
        let Ok(Some(layout)) = Layout::find(head) else { unreachable!("built above") };
        u32::from_le_bytes(icrc::of(head, &layout, &self.payload, &[]))
    }

    fn find_differences(&mut self) {
        let mut head = self.heads[..self.head_len].to_vec();
        let plain = self.icrcs[0];
        for (place, at) in (PSN..PSN + 3).enumerate() {
            for value in 0..=255_u8 {
                head[at] = value;
                self.of_psn[place][usize::from(value)] = self.icrc(&head) ^ plain;
            }
            head[at] = 0;
        }
        head[ACK_REQUEST] = 0x80;
        self.of_ack_request = self.icrc(&head) ^ plain;
    }

    /// Length of each frame in bytes, without FCS.
    pub(crate) fn frame_len(&self) -> usize {
        self.head_len + self.payload.len() + 4
    }

    /// Writes a packet of `flow` to `out`, which has [`Writes::frame_len`] bytes.
    #[inline]
    pub(crate) fn write(&self, flow: u32, psn: Psn, wants_ack: bool, out: &mut [u8]) {
        let from = flow as usize * self.head_len;
        let (head, rest) = out.split_at_mut(self.head_len);
        head.copy_from_slice(&self.heads[from..from + self.head_len]);
        let [_, a, b, c] = psn.get().to_be_bytes();
        head[PSN..PSN + 3].copy_from_slice(&[a, b, c]);
        let turned = self.of_psn[0][usize::from(a)]
            ^ self.of_psn[1][usize::from(b)]
            ^ self.of_psn[2][usize::from(c)];
        let mut icrc = self.icrcs[flow as usize] ^ turned;
        if wants_ack {
            head[ACK_REQUEST] = 0x80;
            icrc ^= self.of_ack_request;
        }
        let (payload, icrc_out) = rest.split_at_mut(self.payload.len());
        payload.copy_from_slice(&self.payload);
        icrc_out.copy_from_slice(&icrc.to_le_bytes());
    }

    /// What a frame that arrived asks for; `None` when it is none of these packets.
    #[inline]
    pub(crate) fn read(&self, frame: &[u8]) -> Option<Request> {
        if frame.len() != self.frame_len() || frame[BTH] != Opcode::RC_WRITE_ONLY.0 {
            return None;
        }
        let flow = flow_at(frame, RESPONDER_QPN, self.flows)?;
        Some(Request { flow, psn: psn_at(frame), wants_ack: frame[ACK_REQUEST] & 0x80 != 0 })
    }

    /// True when the frame's ICRC is right.
    pub(crate) fn is_intact(frame: &[u8]) -> bool {
        match split(frame, frame.len()) {
            Ok(found @ Split::Roce { layout, .. }) => found
                .end()
                .is_some_and(|end| icrc::of_frame(frame, &layout, end) == frame[end - 4..end]),
            _ => false,
        }
    }
}

/// An acknowledgement, as it arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    pub(crate) flow: u32,
    pub(crate) psn: Psn,
    pub(crate) says: Says,
}

/// What an acknowledgement says of its PSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Says {
    /// All up to it arrived.
    Arrived,
    /// All before it arrived, and it is wanted.
    GoBack,
    /// The connection is over.
    Over,
}

/// Acknowledgements of the responders.
pub(crate) struct Acks {
    flows: u32,
    /// One for each two hosts.
    templates: Vec<PathTemplate>,
}

/// Length of an acknowledgement's frame: headers, AETH, ICRC.
pub(crate) const ACK_LEN: usize = BTH + 12 + 4 + 4;

impl Acks {
    pub(crate) fn new(flows: u32) -> Self {
        let of_hosts = (0..flows).step_by(FLOWS_PER_HOSTS as usize);
        let templates = of_hosts.map(|flow| PathTemplate::new(&path_of(flow).reversed())).collect();
        Acks { flows, templates }
    }

    /// Writes an acknowledgement to `out`, which has [`ACK_LEN`] bytes.
    pub(crate) fn write(&self, flow: u32, psn: Psn, aeth: Aeth, out: &mut [u8]) {
        let template = &self.templates[(flow / FLOWS_PER_HOSTS) as usize];
        let bth = Bth::new(Opcode::RC_ACK, Qpn::new(REQUESTER_QPN + flow), psn);
        let mut head = Head::begin(template, &bth);
        head.push_aeth(&aeth);
        let pad_len = head.finish(template, 0);
        let frame = Frame {
            head: head.bytes(),
            payload: Payload::EMPTY,
            trailer: Trailer::Sealed { pad_len },
        };
        frame.write_to(out);
    }

    /// Whose acknowledgement a frame is; `None` when it is none, or one to wait.
    #[inline]
    pub(crate) fn read(&self, frame: &[u8]) -> Option<Answer> {
        if frame.len() < ACK_LEN || frame[BTH] != Opcode::RC_ACK.0 {
            return None;
        }
        let flow = flow_at(frame, REQUESTER_QPN, self.flows)?;
        let says = match Syndrome::read(frame[SYNDROME]) {
            Syndrome::Ack { .. } => Says::Arrived,
            Syndrome::Nak(NakCode::PsnSequence) => Says::GoBack,
            Syndrome::Nak(_) => Says::Over,
            Syndrome::RnrNak { .. } | Syndrome::Reserved(_) => return None,
        };
        Some(Answer { flow, psn: psn_at(frame), says })
    }
}

/// The AETH of an acknowledgement up to message `msn`, or of a request to go back.
pub(crate) fn aeth(msn: u64, goes_back: bool) -> Aeth {
    let syndrome =
        if goes_back { Syndrome::Nak(NakCode::PsnSequence) } else { Syndrome::ACK_UNLIMITED };
    Aeth { syndrome, msn: Msn::new(msn as u32) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_packet_carries_the_icrc_that_is_computed(
            size in 1_usize..=PAYLOAD_MAX,
            flow in 0_u32..50,
            psn in 0_u32..1 << 24,
            wants_ack: bool,
        ) {
            let writes = Writes::new(50, size);
            let mut frame = vec![0; writes.frame_len()];
            writes.write(flow, Psn::new(psn), wants_ack, &mut frame);
            prop_assert!(Writes::is_intact(&frame));
            prop_assert_eq!(
                writes.read(&frame),
                Some(Request { flow, psn: Psn::new(psn), wants_ack })
            );
            frame[60] ^= 1;
            prop_assert!(!Writes::is_intact(&frame));
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let writes = Writes::new(3, 128);
            let request = writes.read(&bytes);
            prop_assert!(request.is_none_or(|request| request.flow < 3));
            let answer = Acks::new(3).read(&bytes);
            prop_assert!(answer.is_none_or(|answer| answer.flow < 3));
            Writes::is_intact(&bytes);
        }
    }

    #[test]
    fn acknowledgements_are_told_from_requests_to_go_back() {
        let acks = Acks::new(4);
        let mut frame = [0; ACK_LEN];
        for (goes_back, says) in [(false, Says::Arrived), (true, Says::GoBack)] {
            acks.write(3, Psn::new(9), aeth(5, goes_back), &mut frame);
            assert!(Writes::is_intact(&frame));
            assert_eq!(acks.read(&frame), Some(Answer { flow: 3, psn: Psn::new(9), says }));
        }
        assert_eq!(Acks::new(3).read(&frame), None);
    }
}
