//! Reports on captures of Linux's rxe, and on files that are damaged, truncated or not captures.

use crate::script::*;
use longhaul_doctor::report::{Confidence, Flow, Pairing};
use longhaul_doctor::text::{Selection, render};
use longhaul_doctor::{Doctor, End, Mark, Options, ReadError, Report, Trace, examine};
use longhaul_wire::Opcode;
use longhaul_wire::pcap::{LinkType, RecordHeader, file_header, records};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../checks/captures").join(format!("{name}.pcap"))
}

fn bytes(name: &str) -> Vec<u8> {
    let path = path(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn examined(file: &[u8]) -> Result<Report, ReadError> {
    let mut doctor = Doctor::new(Options::default());
    examine(file, &mut doctor, |_| {})?;
    Ok(doctor.finish())
}

fn report(name: &str) -> Report {
    examined(&bytes(name)).unwrap()
}

fn only_flow(name: &str) -> Flow {
    let mut report = report(name);
    assert_eq!(report.flows.len(), 1);
    report.flows.remove(0)
}

fn rule<'a>(report: &'a Report, rule: &str) -> Option<&'a longhaul_doctor::report::Finding> {
    report.findings.iter().find(|finding| finding.rule == rule)
}

/// A pcap file of `frames`, each with its original length.
fn file(link_type: u16, frames: &[(&[u8], usize)]) -> Vec<u8> {
    let mut file = file_header(LinkType(link_type), 65_535).to_vec();
    for (number, (bytes, original)) in frames.iter().enumerate() {
        let header = RecordHeader {
            timestamp_ns: 1_000_000_000 + number as u64 * 10_000,
            captured_len: bytes.len() as u32,
            original_len: *original as u32,
        };
        file.extend(header.write());
        file.extend_from_slice(bytes);
    }
    file
}

fn frames(name: &str) -> Vec<Vec<u8>> {
    records(&bytes(name)).map(|record| record.unwrap().data.to_vec()).collect()
}

mod linux_rxe {
    use super::*;

    #[test]
    fn stalls_at_128_messages_over_5_ms() {
        let flow = only_flow("rc_write_512B_delay5ms_td128");
        let window = found(&flow, "window");
        assert!(
            window.what.contains("128 messages of one packet each outstanding"),
            "{}",
            window.what
        );
        assert_eq!(window.confidence, Confidence::Likely);
        assert!(window.share_of_time.unwrap() > 0.55);
        assert!(
            window.advice.as_ref().unwrap().contains("100 at a time though 128 fit"),
            "{:?}",
            window.advice
        );
        assert_eq!(flow.window.messages.unwrap().max, 128);
        assert_eq!((flow.operations[0].operation, flow.operations[0].bytes.max), ("WRITE", 512));
        let near = flow.round_trip.near_ns.unwrap();
        assert!(near.0 > 2 * MS && near.1 < 20 * MS, "{near:?}");
    }

    #[test]
    fn goes_back_n_at_five_percent_loss() {
        let flow = only_flow("rc_write_loss5pct_16k");
        assert_eq!(flow.findings[0].rule, "loss_recovery");
        assert_eq!((flow.counters.sequence_naks, flow.counters.resent_packets), (12, 1036));
        assert_eq!(flow.payload_bytes, 20 * 16_384);
        assert_eq!(flow.path_mtu, Some(1024));
        let timeout = found(&flow, "timeout");
        assert!(timeout.evidence.contains("timeout 14 means 67.1 ms"), "{}", timeout.evidence);
        found(&flow, "unheeded_nak");
    }

    #[test]
    fn waits_for_receives() {
        let flow = only_flow("rc_rnr_nak_then_ok");
        assert_eq!(flow.counters.rnr_naks, 7);
        assert!(found(&flow, "rnr_nak").evidence.contains("asked to wait 1.28 ms"));
        assert_eq!(flow.findings[0].rule, "rnr_limit");
    }

    #[test]
    fn refuses_a_read_of_memory_that_it_may_not_have() {
        let flow = only_flow("rc_nak_remote_access_read");
        assert_eq!(flow.findings[0].rule, "fatal_nak");
        assert!(flow.findings[0].evidence.contains("frame 4, PSN 1193047"));
    }

    #[test]
    fn passes_the_end_of_the_psn_space() {
        let flow = only_flow("rc_psn_wrap");
        assert_eq!(flow.counters.psn_wraps, 1);
        assert_eq!((flow.first_psn, flow.psns), (Some(16_777_213), 20));
        assert_eq!((flow.counters.resent_packets, flow.counters.missed_by_capture), (0, 0));
    }

    #[test]
    fn does_every_operation() {
        let flow = only_flow("rc_all_ops_mtu1024");
        let counts: Vec<_> =
            flow.operations.iter().map(|o| (o.operation, o.bytes.samples)).collect();
        assert_eq!(
            counts,
            [("SEND", 12), ("WRITE", 7), ("READ", 4), ("CMP_SWAP", 1), ("FETCH_ADD", 1)]
        );
        assert_eq!(flow.path_mtu, Some(1024));
        assert_eq!(flow.unsized_messages, 0);
        let atomics = only_flow("rc_atomic_cmp_swap");
        assert_eq!(atomics.window.reads.unwrap().max, 4);
    }

    #[test]
    fn is_paired_by_the_connection_manager() {
        let report = report("cm_rc_perftest_write_5000B");
        assert_eq!((report.connection_manager.requests, report.connection_manager.replies), (2, 2));
        let data = report.flows.iter().find(|f| f.operations[0].operation == "WRITE").unwrap();
        assert_eq!(data.pairing, Pairing::ConnectionManager);
        let agreed = data.agreed.unwrap();
        assert_eq!(
            (agreed.path_mtu, agreed.ack_timeout_code, agreed.retry_count),
            (Some(4096), 19, 7)
        );
        assert_eq!((data.requester.qpn, data.responder.qpn), (Some(0x18), Some(0x17)));
        assert_eq!(data.operations[0].bytes.median, 5000);
        let control: Vec<_> = report.flows.iter().filter(|f| f.reverse_id.is_some()).collect();
        assert_eq!(control.len(), 2, "the control connection has requests both ways");
    }

    #[test]
    fn refuses_a_connection_that_nobody_listens_for() {
        let report = report("cm_rc_reject_no_listener");
        assert!(report.flows.is_empty());
        assert_eq!(report.connection_manager.rejected[0].reason, 8);
        assert!(rule(&report, "rejected").unwrap().what.contains("10.10.0.2 refused"));
    }

    #[test]
    fn sends_unreliable_traffic_that_nobody_acknowledges() {
        let uc = only_flow("uc_all_ops_mtu1024");
        assert_eq!((uc.transport, uc.counters.unreliable_gaps, uc.path_mtu), ("UC", 0, Some(1024)));
        let ud = report("ud_pingpong");
        assert_eq!(ud.flows.len(), 2);
        assert!(
            ud.flows.iter().all(|f| f.transport == "UD" && f.operations[0].bytes.median == 200)
        );
    }

    #[test]
    fn has_no_wrong_icrc_in_any_capture() {
        let folder = path("x");
        let mut read = 0;
        for entry in std::fs::read_dir(folder.parent().unwrap()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "pcap") {
                let report = examined(&std::fs::read(&path).unwrap()).unwrap();
                let icrc = &report.capture.icrc;
                assert_eq!(
                    (icrc.wrong, icrc.right),
                    (0, report.capture.frames),
                    "{}",
                    path.display()
                );
                assert_eq!(report.capture.end, End::Complete);
                for flow in &report.flows {
                    let c = &flow.counters;
                    assert_eq!(
                        (c.missed_by_capture, c.restarts, c.captured_twice),
                        (0, 0, 0),
                        "{}",
                        path.display()
                    );
                }
                read += 1;
            }
        }
        assert_eq!(read, 14);
    }
}

mod a_snap_length {
    use super::*;

    #[test]
    fn behind_the_headers_costs_the_icrc_alone() {
        let frames = frames("rc_write_loss5pct_16k");
        let cut: Vec<(&[u8], usize)> =
            frames.iter().map(|f| (&f[..f.len().min(80)], f.len())).collect();
        let whole: Vec<(&[u8], usize)> = frames.iter().map(|f| (&f[..], f.len())).collect();
        let (cut, whole) = (examined(&file(1, &cut)).unwrap(), examined(&file(1, &whole)).unwrap());
        assert!(cut.capture.icrc.not_checked > 1300 && cut.capture.icrc.wrong == 0);
        assert_eq!(cut.flows[0].findings, whole.flows[0].findings);
        assert_eq!(cut.flows[0].payload_bytes, whole.flows[0].payload_bytes);
        assert!(rule(&cut, "snap_length").unwrap().evidence.contains("headers are all there"));
    }

    #[test]
    fn amid_the_extended_headers_leaves_what_the_bth_says() {
        let frames = frames("rc_write_512B_delay5ms_td128");
        let cut: Vec<(&[u8], usize)> =
            frames.iter().map(|f| (&f[..f.len().min(54)], f.len())).collect();
        let report = examined(&file(1, &cut)).unwrap();
        let flow = &report.flows[0];
        assert_eq!((flow.operations[0].bytes.samples, flow.operations[0].bytes.max), (300, 512));
        assert_eq!(flow.window.messages.unwrap().max, 128);
        assert_eq!(report.capture.cut_in_headers, 0);
    }

    #[test]
    fn before_the_bth_is_counted() {
        let frames = frames("rc_psn_wrap");
        let cut: Vec<(&[u8], usize)> = frames.iter().map(|f| (&f[..48], f.len())).collect();
        let report = examined(&file(1, &cut)).unwrap();
        assert_eq!((report.capture.cut_in_headers, report.flows.len()), (26, 0));
    }
}

mod a_link_type {
    use super::*;

    /// The IP packets of a capture behind another link's header.
    fn behind(header: &[u8], link_type: u16) -> Report {
        let frames: Vec<Vec<u8>> =
            frames("rc_psn_wrap").iter().map(|f| [header, &f[14..]].concat()).collect();
        let frames: Vec<(&[u8], usize)> = frames.iter().map(|f| (&f[..], f.len())).collect();
        examined(&file(link_type, &frames)).unwrap()
    }

    #[test]
    fn that_is_known_makes_no_difference() {
        let sll = [0, 0, 0, 1, 0, 6, 2, 2, 2, 2, 2, 2, 0, 0, 0x08, 0x00];
        let sll2 = [0x08, 0x00, 0, 0, 0, 0, 0, 2, 0, 1, 0, 6, 2, 2, 2, 2, 2, 2, 0, 0];
        for (header, link_type) in
            [(&sll[..], 113), (&sll2, 276), (&[], 101), (&[], 228), (&[2, 0, 0, 0], 0)]
        {
            let report = behind(header, link_type);
            assert_eq!(report.capture.icrc.right, 26, "{link_type}");
            assert_eq!(report.flows[0].counters.psn_wraps, 1, "{link_type}");
        }
    }

    #[test]
    fn with_two_vlan_tags_is_ethernet_all_the_same() {
        let tags = [[0x88, 0xa8, 0, 5], [0x81, 0x00, 0, 7]].concat();
        let ethernet = [&[2; 12][..], &tags, &[0x08, 0x00]].concat();
        assert_eq!(behind(&ethernet, 1).capture.icrc.right, 26);
    }

    #[test]
    fn that_is_not_read_is_named() {
        let report = behind(&[0; 30], 127);
        let finding = rule(&report, "link_type").unwrap();
        assert!(
            finding.what.contains("link type 127 (802.11 with radiotap (Wi-Fi))"),
            "{}",
            finding.what
        );
        assert!(rule(&report, "no_roce").is_some());
    }
}

mod a_capture_without_roce {
    use super::*;

    #[test]
    fn is_told_what_was_there_and_how_to_capture() {
        let mut tcp = frames("rc_psn_wrap")[0].clone();
        tcp[14 + 9] = 6;
        tcp[34..38].copy_from_slice(&[0xc0, 0, 0, 22]);
        let mut arp = tcp.clone();
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        let frames: Vec<(&[u8], usize)> =
            [&tcp, &tcp, &arp].iter().map(|f| (&f[..], f.len())).collect();
        let report = examined(&file(1, &frames)).unwrap();
        let finding = rule(&report, "no_roce").unwrap();
        assert_eq!(finding.evidence, "instead: 2 × TCP port 22, 1 × ARP");
        let advice = finding.advice.as_ref().unwrap();
        assert!(advice.contains("udp port 4791") && advice.contains("mirror"), "{advice}");
    }

    #[test]
    fn and_without_anything_is_said_to_be_empty() {
        let report = examined(&file(1, &[])).unwrap();
        assert!(rule(&report, "empty").is_some());
    }
}

mod a_file {
    use super::*;

    #[test]
    fn that_is_cut_is_explained_as_far_as_it_goes() {
        let whole = bytes("rc_psn_wrap");
        let report = examined(&whole[..whole.len() - 7]).unwrap();
        let End::Truncated { at_byte, missing_bytes } = report.capture.end else {
            panic!("{:?}", report.capture.end)
        };
        assert_eq!(missing_bytes, 7);
        assert_eq!(report.capture.frames, 25);
        assert!(at_byte < whole.len() as u64);
        assert!(rule(&report, "truncated").unwrap().evidence.contains("after 25 frames"));
        assert_eq!(report.flows.len(), 1);
    }

    #[test]
    fn that_is_damaged_is_explained_up_to_the_damage() {
        let mut file = bytes("rc_psn_wrap");
        let end = file.len();
        file.extend([0xff; 100]);
        let report = examined(&file).unwrap();
        let End::Damaged { at_byte, .. } = report.capture.end else {
            panic!("{:?}", report.capture.end)
        };
        assert_eq!((at_byte, report.capture.frames), (end as u64, 26));
    }

    #[test]
    fn that_is_no_capture_is_refused() {
        assert!(
            examined(b"root:x:0:0").unwrap_err().to_string().contains("neither pcap nor pcapng")
        );
        assert!(examined(b"\x1f\x8b\x08\x00").unwrap_err().to_string().contains("gunzip"));
        assert!(examined(b"").is_err());
    }
}

mod a_wrong_icrc {
    use super::*;

    #[test]
    fn that_is_the_same_everywhere_is_a_stack_that_computes_none() {
        let mut frames = frames("rc_psn_wrap");
        for frame in &mut frames {
            let at = frame.len() - 4;
            frame[at..].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
        }
        let frames: Vec<(&[u8], usize)> = frames.iter().map(|f| (&f[..], f.len())).collect();
        let report = examined(&file(1, &frames)).unwrap();
        assert_eq!(report.capture.icrc.wrong, 26);
        assert_eq!(report.capture.icrc.constant.as_deref(), Some("deadbeef"));
        assert_eq!(report.capture.icrc.first_wrong_frame, Some(1));
        assert!(rule(&report, "wrong_icrc").unwrap().advice.as_ref().unwrap().contains("constant"));
    }
}

mod the_output {
    use super::*;

    #[test]
    fn fits_the_terminal() {
        for name in
            ["rc_write_loss5pct_16k", "cm_rc_perftest_write_5000B", "cm_rc_reject_no_listener"]
        {
            for columns in [80, 100] {
                let selection = Selection { top: 10, flow: None };
                let text = render(name, &report(name), selection, columns);
                let prose = text.split("\n\n").filter(|section| !section.starts_with("FLOWS"));
                for line in prose.flat_map(str::lines) {
                    assert!(line.chars().count() <= columns, "{name}: {line}");
                }
            }
        }
    }

    #[test]
    fn a_burst_has_no_rate() {
        let mut report = report("rc_write_loss5pct_16k");
        let text = |report: &Report| render("x", report, Selection { top: 1, flow: None }, 300);
        assert!(text(&report).contains("busiest 100 µs"));
        report.flows[0].duration_ns = 36_800;
        let text = text(&report);
        assert!(text.contains("of payload in 36.8 µs, too short for a rate\n"), "{text}");
        assert!(!text.contains("busiest"), "{text}");
    }

    #[test]
    fn as_json_has_the_documented_names() {
        let json = serde_json::to_value(report("rc_write_loss5pct_16k")).unwrap();
        assert_eq!(json["schema"], 1);
        assert_eq!(json["capture"]["end"]["kind"], "complete");
        assert_eq!(json["flows"][0]["findings"][0]["rule"], "loss_recovery");
        assert_eq!(json["flows"][0]["findings"][0]["confidence"], "likely");
        assert_eq!(json["flows"][0]["pairing"], "traffic");
        assert!(json["flows"][0]["window"]["messages"]["max"].is_u64());
    }

    #[test]
    fn as_a_trace_has_points_of_each_kind_of_packet() {
        let file = bytes("rc_write_loss5pct_16k");
        let flow = only_flow("rc_write_loss5pct_16k");
        let mut doctor = Doctor::tracing(Options::default(), Trace::of(&flow));
        examine(&file[..], &mut doctor, |_| {}).unwrap();
        let trace = doctor.finish_trace().unwrap();
        let points = trace.points();
        assert!(points.len() > 500 && points.len() <= 1402);
        for mark in [Mark::Request, Mark::Ack, Mark::Again, Mark::Nak] {
            assert!(points.iter().any(|point| point.2 == mark), "{mark:?}");
        }
        let (end, psns) = (flow.duration_ns as f64, flow.psns as f64);
        assert!(points.iter().all(|(x, y, _)| (0.0..=end).contains(x) && (0.0..=psns).contains(y)));
    }
}

mod memory {
    use super::*;

    #[test]
    fn is_bounded_where_nothing_is_ever_acknowledged() {
        let options = Options { packets_max: 1000, halves_max: 8, ..Options::default() };
        let mut script = Script::default();
        (0..20_000_u32).for_each(|psn| script.write(u64::from(psn) * 1000, psn, 0));
        let report = script.report_with(options);
        assert_eq!(report.flows[0].request_packets, 20_000);
        assert!(report.flows[0].window.messages.unwrap().max <= 1000);
    }

    #[test]
    fn is_bounded_where_every_packet_is_a_new_flow() {
        let mut script = Script::default();
        let template = template(true, 0);
        for qpn in 0..1000 {
            let bth = longhaul_wire::Bth::new(
                Opcode::RC_SEND_ONLY,
                longhaul_units::Qpn::new(qpn + 2),
                longhaul_units::Psn::new(qpn),
            );
            script.add(u64::from(qpn) * 1000, frame(&template, &bth, |_| {}, 8));
        }
        let report = script.report_with(Options { halves_max: 100, ..Options::default() });
        assert_eq!((report.flows.len(), report.flows_not_followed), (100, 900));
        assert!(rule(&report, "too_many_flows").is_some());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_bytes_are_explained_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = examined(&bytes);
    }

    #[test]
    fn any_packets_are_explained(
        packets in prop::collection::vec(
            (
                any::<bool>(),
                any::<u8>(),
                0_u32..64,
                any::<u32>(),
                any::<u8>(),
                0_u64..5_000_000,
                0_usize..20,
            ),
            0..300,
        ),
    ) {
        let mut script = Script::default();
        let mut now = 0;
        for (forward, opcode, near, far, syndrome, step, payload) in packets {
            now += step;
            let qpn = longhaul_units::Qpn::new(if forward { RESPONDER_QP } else { REQUESTER_QP });
            // Mostly near each other, at times anywhere.
            let psn = if near < 60 { near } else { far };
            let opcode = Opcode(opcode % 0x18);
            let bth = longhaul_wire::Bth::new(opcode, qpn, longhaul_units::Psn::new(psn));
            let extended = |head: &mut longhaul_wire::Head| {
                let aeth = longhaul_wire::Aeth {
                    syndrome: longhaul_wire::Syndrome::read(syndrome),
                    msn: longhaul_units::Msn::new(0),
                };
                if opcode.has_aeth() {
                    head.push_aeth(&aeth);
                }
                if opcode.has_reth() {
                    let len = if syndrome < 200 { far % 9000 } else { far };
                    let rkey = longhaul_units::RKey(1);
                    head.push_reth(&longhaul_wire::Reth { virtual_address: 0, rkey, len });
                }
            };
            let template = template(forward, syndrome);
            let mut head = longhaul_wire::Head::begin(&template, &bth);
            extended(&mut head);
            let mut bytes = head.bytes().to_vec();
            let missing = opcode.extended_len() + 54 - bytes.len();
            bytes.resize(bytes.len() + missing + payload * 4 + 4, 0);
            let total = (bytes.len() - 14) as u16;
            bytes[16..18].copy_from_slice(&total.to_be_bytes());
            bytes[38..40].copy_from_slice(&(total - 20).to_be_bytes());
            script.add(now, bytes);
        }
        let report = script.report();
        prop_assert_eq!(report.capture.roce_packets, script.frames.len() as u64);
        let _ = render("any", &report, Selection { top: 5, flow: None }, 98);
    }

    #[test]
    fn damaged_captures_are_explained(
        at in 24_usize..20_000,
        with in any::<u8>(),
        cut in 0_usize..20_248,
    ) {
        let mut file = bytes("rc_psn_wrap");
        let at = at % file.len();
        file[at] ^= with;
        file.truncate(file.len().saturating_sub(cut));
        if let Ok(report) = examined(&file) {
            let _ = render("damaged", &report, Selection { top: 5, flow: None }, 98);
        }
    }
}
