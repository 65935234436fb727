//! Tests of `longhaul decode`: its output for valid, damaged and truncated frames.

use super::*;
use clap::Parser as _;
use longhaul_wire::pcap::{RecordHeader, file_header};

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

/// Returns the output for `capture` with these options, the tally, and the result.
fn decoded(capture: &[u8], options: &[&str]) -> (String, Tally, Result<(), Failure>) {
    let args = Cli::parse_from(["decode", "x.pcap"].iter().chain(options)).args;
    let mut out = Vec::new();
    let mut tally = Tally::default();
    let outcome = decode(&args, "x.pcap", capture, &mut out, &mut tally);
    (String::from_utf8(out).unwrap(), tally, outcome)
}

fn kernel_capture(name: &str) -> Vec<u8> {
    let path = format!("{}/../../checks/captures/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A capture of `frames`, each with the length that it had on the wire.
fn capture(frames: &[(&[u8], usize)]) -> Vec<u8> {
    let mut file = file_header(LinkType::ETHERNET, 65_535).to_vec();
    for (number, (frame, wire_len)) in frames.iter().enumerate() {
        let timestamp_ns = 5_000_000_000 + number as u64;
        let (captured_len, original_len) = (frame.len() as u32, *wire_len as u32);
        file.extend(RecordHeader { timestamp_ns, captured_len, original_len }.write());
        file.extend(*frame);
    }
    file
}

/// The first frame of a capture of the kernel.
fn first_frame(name: &str) -> Vec<u8> {
    let file = kernel_capture(name);
    longhaul_wire::pcap::records(&file).next().unwrap().unwrap().data.to_vec()
}

/// The lines of `text` that contain `part`, without frame number and time.
fn lines<'a>(text: &'a str, part: &str) -> Vec<&'a str> {
    text.lines().filter(|l| l.contains(part)).map(|l| &l[22..]).collect()
}

/// Damages one byte of a frame.
fn with_byte(frame: &[u8], at: usize, byte: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at] = byte;
    frame
}

mod a_line_of_text {
    use super::*;

    fn first(name: &str, part: &str) -> String {
        let (text, tally, outcome) = decoded(&kernel_capture(name), &[]);
        outcome.unwrap();
        assert_eq!(tally.report(), None);
        lines(&text, part)[0].to_owned()
    }

    #[test]
    fn shows_the_messages_of_the_connection_manager() {
        assert_eq!(
            first("cm_rc_reject_no_listener", "CM REQ"),
            "10.10.0.1 → 10.10.0.2  UD SEND Only  QP 0x000001 PSN 6 AckReq  from QP 0x000001 QKey \
             0x80010000  CM REQ, id 0x18ec6503, service TCP:7999 from 10.10.0.1:50115, QP \
             0x000013, peer begins at PSN 15454082, MTU 4096, READs 1 out 1 in, retries 7, RNR \
             retries 7  ICRC ok"
        );
        assert!(first("cm_rc_reject_no_listener", "CM REJ").ends_with(
            "CM REJ, peer id 0x18ec6503, reason 8 (invalid service id: nobody listens)  ICRC ok"
        ));
        assert!(
            first("cm_ud_sidr_udaddy", "SIDR_REP").ends_with(
                "CM SIDR_REP, peer id 0x1fec6503, QP 0x000015, QKey 0x01234567  ICRC ok"
            )
        );
    }

    #[test]
    fn shows_what_a_req_offers_by_ece() {
        let mut req = first_frame("cm_rc_reject_no_listener");
        let mad_at = 62;
        req[mad_at + 20..mad_at + 24].copy_from_slice(&[0x20, 0, 0, 1]);
        req[mad_at + 24 + 5..mad_at + 24 + 8].copy_from_slice(&[0, 0x15, 0xb3]);
        let (text, ..) = decoded(&capture(&[(&req, req.len())]), &[]);
        assert!(text.contains("RNR retries 7, ECE 0x20000001 of vendor 0x000015b3"), "{text}");
        let (json, ..) = decoded(&capture(&[(&req, req.len())]), &["--json"]);
        assert!(json.contains(r#""ece":["0x000015b3","0x20000001"]"#), "{json}");
    }

    #[test]
    fn shows_requests_with_their_extended_headers() {
        assert_eq!(
            first("rc_nak_remote_access_read", "READ Request"),
            "10.10.0.1 → 10.10.0.2  RC READ Request  QP 0x000023 PSN 1193047 AckReq  VA \
             0x00007fede2bbf040 rkey 0x000018ed DMA 100  ICRC ok"
        );
        assert!(first("cm_ud_sidr_udaddy", "Immediate").contains("  imm 0x00000016  100 B  "));
        assert!(
            first("rc_atomic_cmp_swap", "CMP_SWAP").contains(" swap 0x0000000000000000 compare 0x")
        );
    }

    #[test]
    fn shows_syndromes_in_words() {
        let ack = first("rc_nak_remote_access_read", "RC ACK");
        assert!(ack.ends_with("PSN 1193046  ACK, credits unlimited, MSN 1  ICRC ok"), "{ack}");
        let nak = first("rc_nak_remote_access_read", "NAK");
        assert!(
            nak.ends_with("PSN 1193047  NAK 0x62, remote access error, MSN 1  ICRC ok"),
            "{nak}"
        );
        let rnr = first("rc_rnr_nak_then_ok", "RNR");
        assert!(rnr.ends_with("RNR NAK, wait 1.28 ms, MSN 0  ICRC ok"), "{rnr}");
    }

    #[test]
    fn counts_time_from_the_first_frame() {
        let frame = first_frame("rc_psn_wrap");
        let (text, ..) = decoded(&capture(&[(&frame, frame.len()), (&frame, frame.len())]), &[]);
        let starts: Vec<_> = text.lines().map(|l| &l[..20]).collect();
        assert_eq!(starts, ["     1   0.000000000", "     2   0.000000001"]);
    }

    #[test]
    fn is_short_for_what_is_not_rocev2() {
        let arp = [&[0xff; 6][..], &[2; 6], &[0x08, 0x06], &[0; 46]].concat();
        let frame = first_frame("rc_psn_wrap");
        let tcp = with_byte(&frame, 23, 6);
        let (text, tally, outcome) =
            decoded(&capture(&[(&arp, 60), (&tcp, tcp.len()), (&[1, 2], 2)]), &[]);
        outcome.unwrap();
        assert_eq!(tally.report(), None);
        let lines: Vec<_> = text.lines().map(|l| &l[22..]).collect();
        let tcp_line = format!("10.10.0.1 → 10.10.0.2  TCP, {} bytes", tcp.len());
        assert_eq!(
            lines,
            [
                "02:02:02:02:02:02 → ff:ff:ff:ff:ff:ff  ARP, 60 bytes",
                &tcp_line,
                "shorter than an Ethernet header, 2 bytes"
            ]
        );
    }
}

mod a_damaged_packet {
    use super::*;

    #[test]
    fn is_shown_and_counted() {
        let frame = first_frame("rc_psn_wrap");
        let last = frame.len() - 1;
        let wrong = with_byte(&frame, last, frame[last] ^ 1);
        let malformed = with_byte(&frame, 17, 0xff);
        let whole = frame.len();
        let frames: [(&[u8], usize); 3] = [(&frame, whole), (&wrong, whole), (&malformed, whole)];
        let (text, tally, outcome) = decoded(&capture(&frames), &[]);
        outcome.unwrap();
        assert_eq!(
            tally.report().unwrap(),
            "1 packet with a wrong ICRC (frame 2), 1 packet malformed (frame 3)"
        );
        assert!(text.contains("ICRC WRONG: 0x"), "{text}");
        assert!(text.contains("MALFORMED: IP or UDP length disagrees with the frame"), "{text}");
    }

    #[test]
    fn is_named_up_to_the_eighth() {
        let frame = with_byte(&first_frame("rc_psn_wrap"), 17, 0xff);
        let (_, tally, _) = decoded(&capture(&[(&frame[..], frame.len()); 20]), &[]);
        assert_eq!(
            tally.report().unwrap(),
            "20 packets malformed (frames 1, 2, 3, 4, 5, 6, 7, 8, …)"
        );
    }

    #[test]
    fn is_no_error_when_the_snap_length_cut_it() {
        let frame = first_frame("rc_psn_wrap");
        let cut: Vec<_> = (0..=frame.len()).map(|len| (&frame[..len], frame.len())).collect();
        let (text, tally, outcome) = decoded(&capture(&cut), &[]);
        outcome.unwrap();
        assert_eq!(tally.report(), None);
        assert!(
            text.contains("ICRC cut") && text.contains("cut inside its headers by the snap length")
        );
        assert_eq!(text.lines().filter(|l| l.contains("ICRC ok")).count(), 1);
    }
}

mod options {
    use super::*;

    #[test]
    fn limit_ends_the_output() {
        let (text, tally, outcome) = decoded(&kernel_capture("rc_psn_wrap"), &["--limit", "3"]);
        outcome.unwrap();
        assert_eq!((text.lines().count(), tally.frames), (3, 3));
    }

    #[test]
    fn qp_keeps_packets_to_that_queue_pair_and_their_numbers() {
        let (text, ..) = decoded(&kernel_capture("rc_nak_remote_access_read"), &["--qp", "0x24"]);
        let numbers: Vec<_> = text.lines().map(|l| l[..6].trim()).collect();
        assert_eq!(numbers, ["2", "4"]);
        assert!(Cli::try_parse_from(["decode", "x", "--qp", "0x1000000"]).is_err());
    }

    #[test]
    fn json_gives_one_object_per_frame() {
        let (text, ..) = decoded(&kernel_capture("rc_nak_remote_access_read"), &["--json"]);
        let objects: Vec<serde_json::Value> =
            text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(objects.len(), 4);
        assert_eq!(objects[2]["reth"]["virtual_address"], "0x00007fede2bbf040");
        assert_eq!(objects[2]["destination_qp"], 0x23);
        assert_eq!(objects[3]["aeth"]["nak"], "remote access error");
        assert_eq!(objects[3]["aeth"]["syndrome"], 0x62);
        assert_eq!(objects[3]["icrc"], "ok");
        assert!(objects[3].get("reth").is_none());
    }
}

mod a_file {
    use super::*;

    #[test]
    fn that_is_no_capture_is_told_from_one_that_is_damaged() {
        let failure = |bytes: &[u8]| decoded(bytes, &[]).2.unwrap_err().to_string();
        assert_eq!(
            failure(b"root:x:0:0"),
            "x.pcap is no capture: neither pcap nor pcapng: its first bytes are 72 6f 6f 74"
        );
        assert!(failure(b"\x1f\x8b\x08\x00").ends_with("unpack it with gunzip"));
        assert_eq!(failure(b""), "x.pcap is no capture: the file is empty");
        let whole = kernel_capture("rc_nak_remote_access_read");
        assert_eq!(
            failure(&whole[..whole.len() - 1]),
            "x.pcap is damaged: it ends inside a record, of which 77 bytes are there; 3 frames \
             were read before"
        );
    }

    #[test]
    fn of_another_link_type_is_refused() {
        let mut file = file_header(LinkType(113), 65_535).to_vec();
        file.extend(RecordHeader { timestamp_ns: 0, captured_len: 2, original_len: 2 }.write());
        file.extend([0, 0]);
        let (_, _, outcome) = decoded(&file, &[]);
        assert!(outcome.unwrap_err().to_string().contains("link type 113 instead of Ethernet"));
    }

    #[test]
    fn larger_than_the_buffer_streams_through() {
        let frame = first_frame("rc_psn_wrap");
        let frames = vec![(&frame[..], frame.len()); 10_000];
        let file = capture(&frames);
        assert!(file.len() > Window::LEN);
        let (text, tally, outcome) = decoded(&file, &[]);
        outcome.unwrap();
        assert_eq!((text.lines().count(), tally.report()), (10_000, None));
    }

    #[test]
    fn whose_reader_has_gone_ends_quietly() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let args = Cli::parse_from(["decode", "x.pcap"]).args;
        let capture = kernel_capture("rc_psn_wrap");
        let outcome = decode(&args, "x.pcap", &capture[..], &mut Gone, &mut Tally::default());
        assert!(matches!(outcome, Err(Failure::BrokenPipe)));
    }
}
