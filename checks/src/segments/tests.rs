//! Tests of the proof from captures of all segments, on scripted frames.

use super::*;
use crate::packets::{Fields, paths};
use Segment::{FarLan, FarWan, NearLan, NearWan};
use longhaul_units::{Msn, Psn, Qpn, RKey};
use longhaul_wire::mad::{Header, Mad, Message, Rep, Req, ReqPath, TransportService};
use longhaul_wire::pcap::{LinkType, RecordHeader, file_header};
use longhaul_wire::{Aeth, Bth, Deth, Ipv4Fragmentation, NakCode, Opcode, Reth, Syndrome};

const RESPONDER_QPN: Qpn = Qpn::new(0x11);
const REQUESTER_QPN: Qpn = Qpn::new(0x22);
const MTU: usize = 256;

/// Requests use the first path of [`paths`].
fn packet(opcode: Opcode, psn: u32, payload: usize) -> Fields {
    let mut fields = Fields::made_up(opcode, paths()[0], payload, psn % 97 * 8);
    fields.bth = Bth::new(opcode, RESPONDER_QPN, Psn::new(psn));
    fields.reth = fields.reth.map(|reth| Reth { len: 2 * MTU as u32, ..reth });
    fields.fragmentation =
        fields.fragmentation.map(|f| Ipv4Fragmentation { dont_fragment: true, ..f });
    fields
}

/// WRITEs of two packets each.
fn write(psn: u32, index: u32) -> Fields {
    let opcode =
        if index.is_multiple_of(2) { Opcode::RC_WRITE_FIRST } else { Opcode::RC_WRITE_LAST };
    packet(opcode, psn, MTU)
}

fn answer(opcode: Opcode, psn: u32, syndrome: Syndrome, msn: u32, payload: usize) -> Fields {
    let mut fields = packet(opcode, psn, payload);
    fields.path = fields.path.reversed();
    fields.bth.dest_qp = REQUESTER_QPN;
    fields.aeth = opcode.has_aeth().then_some(Aeth { syndrome, msn: Msn::new(msn) });
    fields
}

fn ack(psn: u32, msn: u32) -> Fields {
    answer(Opcode::RC_ACK, psn, Syndrome::ACK_UNLIMITED, msn, 0)
}

/// Frames in recording order, one per microsecond.
#[derive(Clone, Default)]
struct Script(Vec<(Segment, Vec<u8>)>);

/// An empty frame stands for a pause of this length.
const PAUSE_NS: u64 = 2_000_000_000;

const ALL: [Segment; 4] = [NearLan, NearWan, FarWan, FarLan];

impl Script {
    fn at(&mut self, segments: &[Segment], frame: &Fields) {
        let frame = frame.build();
        self.0.extend(segments.iter().map(|&segment| (segment, frame.clone())));
    }

    fn raw(&mut self, segments: &[Segment], frame: &[u8]) {
        self.0.extend(segments.iter().map(|&segment| (segment, frame.to_vec())));
    }

    /// A copy with `change` applied to frame `number` of `segment`.
    fn with(&self, segment: Segment, number: usize, change: impl FnOnce(&mut Fields)) -> Script {
        let mut script = self.clone();
        let frame = &mut script.frame(segment, number).1;
        let (mut fields, _) = Fields::read(frame).unwrap().unwrap();
        change(&mut fields);
        *frame = fields.build();
        script
    }

    fn frame(&mut self, segment: Segment, number: usize) -> &mut (Segment, Vec<u8>) {
        let mut frames = self.0.iter_mut().filter(|(at, _)| *at == segment);
        frames.nth(number - 1).unwrap()
    }

    fn without(&self, segment: Segment, number: usize) -> Script {
        let mut script = self.clone();
        let mut seen = 0;
        script.0.retain(|(at, _)| {
            seen += usize::from(*at == segment);
            *at != segment || seen != number
        });
        // Only the first time that the count is reached counts.
        assert_eq!(script.0.len() + 1, self.0.len());
        script
    }

    fn capture(&self, segment: Segment) -> Vec<u8> {
        let mut file = file_header(LinkType::ETHERNET, 65_535).to_vec();
        let mut timestamp_ns = 1_700_000_000_000_000_000;
        for (at, frame) in &self.0 {
            timestamp_ns += if frame.is_empty() { PAUSE_NS } else { 1000 };
            if frame.is_empty() || *at != segment {
                continue;
            }
            let header = RecordHeader {
                timestamp_ns,
                captured_len: frame.len() as u32,
                original_len: frame.len() as u32,
            };
            file.extend(header.write());
            file.extend(frame);
        }
        file
    }

    fn prove_at(&self, segments: &[Segment]) -> Proof {
        let files = ALL.map(|segment| segments.contains(&segment).then(|| self.capture(segment)));
        let [a, b, c, d] = files.each_ref().map(|file| {
            file.as_ref()
                .map(|file| std::boxed::Box::new(&file[..]) as std::boxed::Box<dyn Read + '_>)
        });
        prove(Segments { near_lan: a, near_wan: b, far_wan: c, far_lan: d }).unwrap()
    }

    fn prove(&self) -> Proof {
        self.prove_at(&ALL)
    }

    /// Checks that this is the only violation.
    #[track_caller]
    fn breaks(&self, segment: Segment, frame: u64, rule: Rule) {
        let proof = self.prove();
        let found: Vec<_> = proof.violations.iter().map(|v| (v.segment, v.frame, v.rule)).collect();
        assert_eq!(found, [(segment, frame, rule)], "{:#?}", proof.violations);
        assert!(!proof.holds());
    }
}

/// `count` WRITE packets from `first` on, each pseudo-acknowledged at once, before the far side has
/// any; the real ACKs end at the near box. MSNs begin after `base`.
///
/// Near LAN: request, ACK, request, ACK, ... Far LAN: request, ACK, ... Near WAN: all requests, all
/// real ACKs.
fn accelerated(first: u32, count: u32, base: u32) -> Script {
    let psn = |index: u32| Psn::new(first).plus(index).get();
    let mut script = Script::default();
    // From one exchange the near box learns the format of real answers.
    for index in 0..count {
        script.at(&[NearLan, NearWan], &write(psn(index), index));
        if index > 1 {
            script.at(&[NearLan], &ack(psn(index), base + index.div_ceil(2)));
            continue;
        }
        script.at(&[FarWan, FarLan], &write(psn(index), index));
        script.at(&[FarLan, FarWan, NearWan, NearLan], &ack(psn(index), base + index.div_ceil(2)));
    }
    for index in 2..count {
        script.at(&[FarWan, FarLan], &write(psn(index), index));
        script.at(&[FarLan, FarWan, NearWan], &ack(psn(index), base + index.div_ceil(2)));
    }
    script
}

const PACKETS: u32 = 8;
const FIRST: u32 = 0xff_fffc;

/// A script whose PSNs wrap around.
fn usual() -> Script {
    accelerated(FIRST, PACKETS, 41)
}

/// Number, from 1, of request `index` (from 0) of [`usual`] on the near LAN.
fn near_request(index: usize) -> usize {
    2 * index + 1
}

fn near_ack(index: usize) -> usize {
    2 * index + 2
}

mod what_is_right {
    use super::*;

    #[test]
    fn holds_and_is_counted() {
        let proof = usual().prove();
        assert!(proof.holds(), "{proof:#?}");
        let flow = &proof.flows[0];
        let n = u64::from(PACKETS);
        assert_eq!((flow.sent, flow.arrived, flow.acknowledged, flow.confirmed), (n, n, n, n));
        assert_eq!((flow.pseudo_acks, flow.acks_passed), (n - 2, 2));
        assert_eq!((flow.arrived_bytes, flow.arrived_messages), (n * MTU as u64, n / 2));
        assert_eq!((flow.requester_qpn, flow.first_psn), (Some(REQUESTER_QPN.get()), FIRST));
        assert_eq!(flow.end, End::Delivered);
        assert!(flow.msns_checked >= 2 * n - 2, "{flow:?}");
        serde_json::to_string(&proof).unwrap();
    }

    #[test]
    fn holds_from_the_far_host_too() {
        let mut script = usual();
        for (segment, _) in &mut script.0 {
            *segment = match *segment {
                NearLan => FarLan,
                NearWan => FarWan,
                FarWan => NearWan,
                FarLan => NearLan,
            };
        }
        let proof = script.prove();
        assert!(proof.holds(), "{proof:#?}");
        assert_eq!(proof.flows[0].direction, Direction::FarToNear);
    }

    #[test]
    fn holds_with_one_box_alone() {
        for present in
            [&[NearLan, NearWan, FarLan][..], &[NearLan, FarWan], &[NearLan, FarWan, FarLan]]
        {
            let proof = usual().prove_at(present);
            let has_box = present.contains(&NearWan);
            assert_eq!(proof.flows[0].pseudo_acks > 0, has_box, "{present:?}");
            assert!(proof.violations.is_empty(), "{present:?} {:#?}", proof.violations);
        }
    }

    #[test]
    fn a_flow_beside_it_is_told_from_it() {
        let mut script = usual();
        let other = accelerated(5000, 6, 0);
        for (at, (segment, frame)) in other.0.into_iter().enumerate() {
            let (mut fields, _) = Fields::read(&frame).unwrap().unwrap();
            let is_request = fields.bth.opcode.is_request();
            fields.bth.dest_qp = if is_request { Qpn::new(0x33) } else { Qpn::new(0x44) };
            script.0.insert((2 * at + 1).min(script.0.len()), (segment, fields.build()));
        }
        let proof = script.prove();
        assert!(proof.holds(), "{proof:#?}");
        assert_eq!(proof.flows.iter().map(|flow| flow.sent).collect::<Vec<_>>(), [8, 6]);
    }

    #[test]
    fn a_qp_may_live_twice() {
        for second in [5000, FIRST - 5000, 0x40_0000] {
            let mut script = usual();
            script.0.extend(accelerated(second, 4, 0).0);
            let proof = script.prove();
            assert!(proof.holds(), "{second}: {proof:#?}");
            assert_eq!(
                proof.flows.iter().map(|flow| flow.sent).collect::<Vec<_>>(),
                [8, 4],
                "{second}"
            );
        }
    }

    #[test]
    fn loss_behind_the_box_is_filled_from_the_store() {
        let mut script = usual();
        // Request 4 is lost, and 5 to 7 arrive behind the gap; the responder sends a NAK, and all
        // are retransmitted.
        let lost =
            script.0.iter().position(|(at, f)| *at == FarWan && *f == write(0, 4).build()).unwrap();
        script.0.truncate(lost);
        for index in 5..8 {
            script.at(&[FarWan, FarLan], &write(index - 4, index));
        }
        let nak = answer(Opcode::RC_ACK, 0, Syndrome::Nak(NakCode::PsnSequence), 41 + 2, 0);
        script.at(&[FarLan, FarWan, NearWan], &nak);
        for index in 4..8 {
            // The box may set AckReq.
            let mut again = write(index - 4, index);
            again.bth.ack_request = true;
            script.at(&[NearWan, FarWan, FarLan], &again);
        }
        script.at(&[FarLan, FarWan, NearWan], &ack(3, 41 + 4));
        let proof = script.prove();
        assert!(proof.holds(), "{proof:#?}");
        let flow = &proof.flows[0];
        assert_eq!((flow.arrived_behind_a_gap, flow.sequence_naks, flow.confirmed), (3, 1, 8));
    }

    #[test]
    fn too_few_captures_are_refused() {
        let only = usual().capture(NearLan);
        let segments =
            Segments { near_lan: Some(std::boxed::Box::new(&only[..])), ..Segments::default() };
        assert!(matches!(prove(segments), Err(ProofError::TooFew)));
        let cut = Segments {
            near_lan: Some(std::boxed::Box::new(&only[..only.len() - 1])),
            far_lan: Some(std::boxed::Box::new(&only[..])),
            ..Segments::default()
        };
        assert!(matches!(prove(cut), Err(ProofError::Capture(NearLan, _))));
    }

    #[test]
    fn nothing_to_prove_is_no_proof() {
        assert!(!Script::default().prove().holds());
    }
}

mod acknowledgements {
    use super::*;

    #[test]
    fn of_what_the_box_had_not_seen_are_found() {
        // The last ACK but one acknowledges the last packet, which arrives later.
        let script = usual().with(NearLan, near_ack(6), |ack| ack.bth.psn = Psn::new(3));
        script.breaks(NearLan, near_ack(6) as u64, Rule::AckedUnseen);
    }

    #[test]
    fn over_a_gap_are_found() {
        // Packet 6 never reaches the box.
        let script = usual().without(NearLan, near_request(6)).without(NearLan, near_ack(6) - 1);
        let rules: Vec<_> = script.prove().violations.iter().map(|v| (v.segment, v.rule)).collect();
        assert!(rules.contains(&(NearLan, Rule::AckedUnseen)), "{rules:?}");
    }

    #[test]
    fn of_what_never_arrives_are_found() {
        let mut script = usual();
        let last = script.0.iter().rposition(|(_, frame)| *frame == write(3, 7).build()).unwrap();
        script.0.remove(last);
        // The responder would not send these answers then.
        script.0.retain(|(at, frame)| *at == NearLan || *frame != ack(3, 45).build());
        script.breaks(NearLan, near_ack(7) as u64, Rule::AckedNeverArrived);
        assert_eq!(script.prove().flows[0].end, End::Missing { packets: 1 });
    }

    #[test]
    fn of_what_never_arrives_are_excused_by_an_error_that_is_named() {
        let mut script = usual();
        script.0.truncate(script.0.len() - 5);
        let nak = answer(Opcode::RC_ACK, 3, Syndrome::Nak(NakCode::RemoteOperational), 41 + 3, 0);
        script.at(&[FarLan, FarWan, NearWan], &nak);
        let proof = script.prove();
        assert_eq!(proof.violations, []);
        let End::Failed { reason, acknowledged_but_missing: 1 } = &proof.flows[0].end else {
            panic!("{proof:#?}")
        };
        assert!(reason.contains("RemoteOperational on far LAN"), "{reason}");
    }

    #[test]
    fn that_go_back_are_found() {
        let script = usual().with(NearLan, near_ack(6), |ack| {
            ack.bth.psn = Psn::new(0);
            ack.aeth.as_mut().unwrap().msn = Msn::new(43);
        });
        script.breaks(NearLan, near_ack(6) as u64, Rule::AckWentBack);
    }

    #[test]
    fn with_a_wrong_msn_are_found_at_the_box_and_at_the_responder() {
        let wrong = |ack: &mut Fields| ack.aeth.as_mut().unwrap().msn = Msn::new(99);
        usual().with(NearLan, near_ack(6), wrong).breaks(
            NearLan,
            near_ack(6) as u64,
            Rule::MsnWrong,
        );
        usual().with(FarLan, 12, wrong).breaks(FarLan, 12, Rule::MsnWrong);
    }

    #[test]
    fn with_an_illegal_syndrome_are_found() {
        for syndrome in [Syndrome::Reserved(0x85), Syndrome::Nak(NakCode::InvalidRd)] {
            let script = usual()
                .with(NearLan, near_ack(6), |ack| ack.aeth.as_mut().unwrap().syndrome = syndrome);
            script.breaks(NearLan, near_ack(6) as u64, Rule::SyndromeIllegal);
        }
    }

    #[test]
    fn that_promise_more_than_the_responder_are_found() {
        let limited = |code: u8| Syndrome::Ack { credit_code: code };
        let mut script = usual();
        // All real ACKs, and so the pseudo-ACKs, allow one further message: code 1.
        for (_, frame) in &mut script.0 {
            let (mut fields, _) = Fields::read(frame).unwrap().unwrap();
            if let Some(aeth) = &mut fields.aeth {
                let messages = aeth.msn.get() - 41;
                // The second ACK sets the limit 2; later packets do not matter here.
                aeth.syndrome = limited(if messages < 2 { 1 } else { 0 });
            }
            *frame = fields.build();
        }
        let found: Vec<_> = script.prove().violations.iter().map(|v| v.rule).collect();
        assert!(
            found.iter().all(|rule| *rule == Rule::CreditsInvented) && found.len() == 3,
            "{found:?}"
        );
        let mut few = Script(
            script.0[..script.0.iter().position(|(_, f)| *f == write(0, 4).build()).unwrap()]
                .to_vec(),
        );
        assert_eq!(few.prove().violations, []);
        few =
            few.with(NearLan, near_ack(2), |ack| ack.aeth.as_mut().unwrap().syndrome = limited(31));
        few.breaks(NearLan, near_ack(2) as u64, Rule::CreditsInvented);
    }

    #[test]
    fn with_another_migreq_or_other_headers_are_found() {
        let number = near_ack(6) as u64;
        usual().with(NearLan, near_ack(6), |ack| ack.bth.migreq = true).breaks(
            NearLan,
            number,
            Rule::MigReqDiffers,
        );
        let script = usual().with(NearLan, near_ack(6), |ack| ack.path.udp_source_port ^= 1);
        script.breaks(NearLan, number, Rule::AnswerHeadersDiffer);
    }

    #[test]
    fn of_the_responder_for_what_its_segment_does_not_show_are_found() {
        let script = usual().with(FarLan, 10, |ack| {
            ack.bth.psn = Psn::new(2);
            ack.aeth.as_mut().unwrap().msn = Msn::new(44);
        });
        let first = &script.prove().violations[0];
        assert_eq!((first.segment, first.frame, first.rule), (FarLan, 10, Rule::ResponderAhead));
    }
}

mod requests {
    use super::*;

    #[test]
    fn with_other_payload_or_reth_or_flags_are_found() {
        let changes: [fn(&mut Fields); 3] = [
            |write| write.payload[17] ^= 1,
            |write| write.reth.as_mut().unwrap().virtual_address += 1,
            |write| write.bth.solicited ^= true,
        ];
        for change in changes {
            // Packet 4, the first of a message.
            usual().with(FarLan, 9, change).breaks(FarLan, 9, Rule::ContentChanged);
        }
        let mut with_immediate = usual();
        for (_, frame) in &mut with_immediate.0 {
            if *frame == write(3, 7).build() {
                *frame = packet(Opcode::RC_WRITE_LAST_IMM, 3, MTU).build();
            }
        }
        assert!(with_immediate.prove().holds());
        let script = with_immediate.with(FarLan, 15, |write| write.immediate = Some([9; 4]));
        script.breaks(FarLan, 15, Rule::ContentChanged);
    }

    #[test]
    fn with_other_addresses_or_ports_are_found() {
        let script = usual().with(FarLan, 9, |write| write.path.udp_source_port ^= 1);
        script.breaks(FarLan, 9, Rule::HeadersChanged);
        let script = usual().with(FarLan, 9, |write| write.path.destination_mac.0[5] ^= 1);
        script.breaks(FarLan, 9, Rule::HeadersChanged);
        // A congestion mark is no change.
        assert!(usual().with(FarLan, 9, |write| write.path.traffic_class |= 3).prove().holds());
    }

    #[test]
    fn that_nobody_sent_are_found() {
        let mut script = usual();
        script.at(&[FarWan, FarLan], &write(4, 8));
        script.breaks(FarLan, 17, Rule::NeverSent);
    }

    #[test]
    fn sent_again_must_be_the_same() {
        let mut script = usual();
        script.at(&[FarWan, FarLan], &write(3, 7));
        let proof = script.prove();
        assert!(proof.holds(), "{proof:#?}");
        assert_eq!(proof.flows[0].arrived_again, 1);
        script.with(FarLan, 17, |write| write.payload[0] ^= 1).breaks(
            FarLan,
            17,
            Rule::RetransmissionDiffers,
        );
    }

    #[test]
    fn swapped_on_the_way_are_no_arrival() {
        let mut script = usual();
        let at = |script: &Script, wanted: Fields| {
            script
                .0
                .iter()
                .position(|(at, frame)| *at == FarLan && *frame == wanted.build())
                .unwrap()
        };
        let (a, b) = (at(&script, write(2, 6)), at(&script, write(3, 7)));
        script.0.swap(a, b);
        // The responder would not acknowledge packet 6 before it arrived, nor packet 7 at all.
        let rules: Vec<_> = script.prove().violations.iter().map(|v| v.rule).collect();
        assert!(
            rules.contains(&Rule::ResponderAhead) && rules.contains(&Rule::AckedNeverArrived),
            "{rules:?}"
        );
    }

    #[test]
    fn with_a_wrong_udp_checksum_are_found() {
        let mut script = usual();
        let frame = &mut script.frame(FarLan, 15).1;
        frame[40..42].copy_from_slice(&[0x12, 0x34]);
        let first = &script.prove().violations[0];
        assert_eq!((first.segment, first.frame, first.rule), (FarLan, 15, Rule::UdpChecksumWrong));
    }

    #[test]
    fn with_a_wrong_icrc_are_found_and_not_accepted() {
        let mut script = usual();
        let frame = &mut script.frame(FarLan, 15).1;
        let last = frame.len() - 1;
        frame[last] ^= 1;
        let proof = script.prove();
        let first = &proof.violations[0];
        assert_eq!((first.segment, first.frame, first.rule), (FarLan, 15, Rule::IcrcWrong));
        assert_eq!(proof.flows[0].arrived, 7);
    }
}

mod reads {
    use super::*;

    /// A READ of two packets, then a WRITE of one; then their answers.
    fn script(ack_early: bool) -> Script {
        let mut script = Script::default();
        let begin = write(10, 0);
        script.at(&ALL, &begin);
        script.at(&[FarLan, FarWan, NearWan, NearLan], &ack(10, 0));
        script.at(&ALL, &write(11, 1));
        script.at(&[FarLan, FarWan, NearWan, NearLan], &ack(11, 1));
        script.at(&ALL, &packet(Opcode::RC_READ_REQUEST, 12, 0));
        script.at(&[NearLan, NearWan], &packet(Opcode::RC_WRITE_ONLY, 14, 64));
        if ack_early {
            script.at(&[NearLan], &ack(14, 3));
        }
        let first = answer(Opcode::RC_READ_RESPONSE_FIRST, 12, Syndrome::ACK_UNLIMITED, 2, MTU);
        let last = answer(Opcode::RC_READ_RESPONSE_LAST, 13, Syndrome::ACK_UNLIMITED, 2, MTU);
        for response in [&first, &last] {
            script.at(&[FarLan, FarWan, NearWan, NearLan], response);
        }
        if !ack_early {
            script.at(&[NearLan], &ack(14, 3));
        }
        script.at(&[FarWan, FarLan], &packet(Opcode::RC_WRITE_ONLY, 14, 64));
        script.at(&[FarLan, FarWan, NearWan], &ack(14, 3));
        script
    }

    #[test]
    fn are_answered_before_what_is_behind_them() {
        let proof = script(false).prove();
        assert!(proof.holds(), "{proof:#?}");
        let flow = &proof.flows[0];
        assert_eq!((flow.reads_and_atomics, flow.sent, flow.pseudo_acks), (1, 4, 1));
        script(true).breaks(NearLan, 7, Rule::AckPassesRead);
    }

    #[test]
    fn are_not_answered_by_boxes() {
        let mut script = script(false);
        let response = script.frame(NearLan, 7);
        let (mut fields, _) = Fields::read(&response.1).unwrap().unwrap();
        fields.payload[0] ^= 1;
        response.1 = fields.build();
        script.breaks(NearLan, 7, Rule::ResponseMadeUp);
    }
}

mod connections {
    use super::*;

    pub(super) fn mad(message: &Message<'_>, back: bool) -> Fields {
        let mut mad: Mad = [0; 256];
        message.write(&Header::new(7), &mut mad);
        let mut fields = packet(Opcode::UD_SEND_ONLY, 0, 0);
        fields.bth.dest_qp = Qpn::GSI;
        fields.deth = Some(Deth { qkey: 0x8001_0000, reserved_8: 0, source_qp: Qpn::GSI });
        fields.payload = mad.to_vec();
        if back {
            fields.path = fields.path.reversed();
        }
        fields
    }

    /// A connection whose requester must begin with `psn`, before `rest`.
    pub(super) fn connected(psn: u32, rest: Script) -> Script {
        let req = Req {
            local_comm_id: 5,
            service_id: 0,
            ca_guid: 0,
            qkey: 0,
            qpn: REQUESTER_QPN,
            responder_resources: 1,
            initiator_depth: 1,
            remote_response_timeout: 20,
            transport: TransportService::Rc,
            flow_control: true,
            starting_psn: Psn::new(77),
            local_response_timeout: 20,
            retry_count: 7,
            pkey: 0xffff,
            path_mtu: 1,
            rdc_exists: false,
            rnr_retry_count: 7,
            max_cm_retries: 15,
            srq: false,
            primary: ReqPath::default(),
            alternate: ReqPath::default(),
            sap_supported: false,
            private_data: &[],
        };
        let rep = Rep {
            local_comm_id: 6,
            remote_comm_id: 5,
            qkey: 0,
            qpn: RESPONDER_QPN,
            ee_context: 0,
            starting_psn: Psn::new(psn),
            responder_resources: 1,
            initiator_depth: 1,
            target_ack_delay: 15,
            failover_accepted: 0,
            flow_control: true,
            rnr_retry_count: 7,
            srq: false,
            ca_guid: 0,
            private_data: &[],
        };
        let mut script = Script::default();
        script.at(&ALL, &mad(&Message::Req(req), false));
        script.at(&[FarLan, FarWan, NearWan, NearLan], &mad(&Message::Rep(rep), true));
        script.0.extend(rest.0);
        script
    }

    #[test]
    fn say_with_which_psn_and_msn_to_begin() {
        let proof = connected(FIRST, accelerated(FIRST, PACKETS, 0)).prove();
        assert!(proof.holds(), "{proof:#?}");
        assert!(proof.flows[0].by_connection_manager);
        let late = connected(FIRST, accelerated(FIRST, PACKETS, 1)).prove();
        assert!(
            late.violations.iter().all(|v| v.rule == Rule::MsnWrong) && late.violations_total > 0
        );
        // The first packet is missing.
        let skipped = connected(FIRST - 1, accelerated(FIRST, PACKETS, 0)).prove();
        assert!(skipped.violations.iter().any(|v| v.rule == Rule::AckedUnseen), "{skipped:#?}");
    }
}

mod closing {
    use super::*;
    use longhaul_wire::mad::Dreq;

    #[test]
    fn by_the_responder_is_named_when_it_leaves_packets_behind() {
        let mut script = connections::connected(FIRST, accelerated(FIRST, PACKETS, 0));
        script.0.truncate(script.0.len() - 5);
        let dreq = |local_comm_id, remote_comm_id| {
            let dreq = Dreq {
                local_comm_id,
                remote_comm_id,
                remote_qpn: REQUESTER_QPN,
                private_data: &[],
            };
            connections::mad(&Message::Dreq(dreq), true)
        };
        let mut other = script.clone();
        script.at(&[FarLan], &dreq(6, 5));
        let proof = script.prove();
        assert_eq!(proof.violations, []);
        assert!(!proof.holds());
        let end = &proof.flows[0].end;
        let End::Failed { reason, acknowledged_but_missing: 1 } = end else { panic!("{end:?}") };
        assert!(reason.starts_with("the responder closed it, far LAN"), "{reason}");
        // The end of another connection is no excuse.
        other.at(&[FarLan], &dreq(6, 8));
        assert_eq!(other.prove().violations[0].rule, Rule::AckedNeverArrived);
    }
}

mod other_frames {
    use super::*;

    fn other(number: u8) -> Vec<u8> {
        [&[0xff; 12][..], &[0x88, 0xb5, number], &[0; 45]].concat()
    }

    fn script() -> Script {
        let mut script = usual();
        for number in 0..4 {
            script.raw(&ALL, &other(number));
            script.raw(&[FarLan, FarWan, NearWan, NearLan], &other(0x80 + number));
        }
        script
    }

    const BEFORE: usize = 2 * PACKETS as usize;

    #[test]
    fn go_through_boxes_in_both_directions() {
        let proof = script().prove();
        assert!(proof.holds(), "{proof:#?}");
        assert_eq!(
            proof.boxes.iter().map(|passage| passage.carried).collect::<Vec<_>>(),
            [[4, 4]; 2]
        );
    }

    #[test]
    fn that_are_lost_or_changed_are_found() {
        // The first of them, on its way out of the far box.
        script().without(FarLan, BEFORE + 1).breaks(FarWan, BEFORE as u64 + 1, Rule::OtherLost);
        let mut changed = script();
        changed.frame(FarLan, BEFORE + 1).1[30] ^= 1;
        // A frame that did not enter leaves in place of one that did.
        let proof = changed.prove();
        let found: Vec<_> = proof.violations.iter().map(|v| (v.segment, v.frame, v.rule)).collect();
        let number = BEFORE as u64 + 1;
        assert_eq!(found, [(FarWan, number, Rule::OtherLost), (FarLan, number, Rule::OtherLost)]);
    }

    /// A UDP packet with this ECN field from the near host to `port`.
    fn udp(port: u8, number: u8, ecn: u8) -> Vec<u8> {
        let ip = [&[0x45, ecn, 0, 40, 0, number, 0, 0, 64, 17, 0, 0][..], &[10; 4], &[11; 4]];
        [&[2; 12][..], &[8, 0], &ip.concat(), &[0, 9, 0, port, 0, 20, 0, 0], &[0; 12]].concat()
    }

    /// [`usual`], then `frames` through all segments, of which the second leaves the far box first.
    fn overtaking(frames: [&[u8]; 2]) -> Script {
        let mut script = usual();
        for frame in frames {
            script.raw(&[NearLan, NearWan, FarWan], frame);
        }
        for frame in frames.into_iter().rev() {
            script.raw(&[FarLan], frame);
        }
        script
    }

    #[test]
    fn that_are_overtaken_are_found() {
        let last = BEFORE as u64 + 2;
        overtaking([&other(0), &other(1)]).breaks(FarLan, last, Rule::OtherReordered);
        overtaking([&udp(1, 0, 0), &udp(1, 1, 0)]).breaks(FarLan, last, Rule::OtherReordered);
        for frames in [[udp(1, 0, 0), udp(2, 0, 0)], [udp(1, 0, 0), other(0)]] {
            let proof = overtaking(frames.each_ref().map(Vec::as_slice)).prove();
            assert!(proof.holds(), "by another flow: {proof:#?}");
            assert_eq!(proof.boxes[1].carried, [2, 0]);
        }
    }

    #[test]
    fn may_be_marked_if_their_senders_react_to_marks() {
        for (before, after) in [(1, 3), (2, 3), (0, 3), (3, 2), (1, 2)] {
            let entering = udp(1, 0, before);
            let mut leaving = entering.clone();
            let is_mark = after == 3 && longhaul_wire::Ecn::mark(&mut leaving);
            leaving[15] = after;
            let mut script = usual();
            script.raw(&[NearLan, NearWan, FarWan], &entering);
            script.raw(&[FarLan], &leaving);
            script.raw(&[FarLan], &[]);
            script.raw(&ALL, &other(0));
            let rules: Vec<_> = script.prove().violations.iter().map(|found| found.rule).collect();
            let expected = if is_mark { &[][..] } else { &[Rule::OtherLost; 2] };
            assert_eq!(rules, expected, "{before} to {after}");
        }
    }

    #[test]
    fn that_never_leave_are_found_at_the_end_and_before() {
        for pauses in [1, 6] {
            let mut script = usual();
            script.raw(&[NearLan], &other(0));
            for _ in 0..pauses {
                script.raw(&[NearLan], &[]);
            }
            script.raw(&[NearWan, NearLan], &other(0x80));
            script.breaks(NearLan, BEFORE as u64 + 1, Rule::OtherLost);
        }
    }

    #[test]
    fn that_are_under_way_at_the_end_are_not_lost() {
        let mut script = script();
        script.raw(&[NearLan], &other(9));
        let proof = script.prove();
        assert!(proof.holds(), "{proof:#?}");
        assert_eq!(proof.boxes[0].under_way, 1);
    }
}

#[test]
fn rkeys_are_part_of_what_is_compared() {
    usual().with(FarLan, 9, |write| write.reth.as_mut().unwrap().rkey = RKey(1)).breaks(
        FarLan,
        9,
        Rule::ContentChanged,
    );
}
