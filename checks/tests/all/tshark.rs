//! Wireshark's dissector finds in our packets the fields that we wrote. Needs the package tshark.

use longhaul_checks::outside::{output, scratch_file};
use longhaul_checks::packets::{Fields, capture, every_kind};
use longhaul_wire::Opcode;
use std::net::IpAddr;
use std::process::Command;

const FIELDS: [&str; 26] = [
    "_ws.malformed",
    "ip.src",
    "ipv6.src",
    "udp.srcport",
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.ieth",
    "infiniband.invariant.crc",
];

/// tshark's output for the fields above, if the packet has them.
fn dissect(file: &[u8], name: &str) -> Vec<Vec<String>> {
    let path = scratch_file(&format!("tshark-{name}"), file);
    let mut command = Command::new("tshark");
    command.arg("-r").arg(&path).args([
        "-n",
        "-T",
        "fields",
        "-E",
        "separator=|",
        "-E",
        "occurrence=f",
    ]);
    // Disables heuristics about the payload, which report an empty one as malformed.
    for guess in ["rpcordma", "nvme-rdma", "smb_direct", "iser", "rpc"] {
        command.args(["--disable-protocol", guess]);
    }
    for field in FIELDS {
        command.args(["-e", field]);
    }
    let text = output(&mut command, "tshark", &[]);
    std::fs::remove_file(&path).unwrap();
    text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect()
}

/// The expected output, from the fields of the packet.
fn expected(fields: &Fields, frame: &[u8]) -> Vec<String> {
    let decimal = |v: u32| v.to_string();
    let flag = |v: bool| u8::from(v).to_string();
    let hex =
        |v: Option<u64>, width: usize| v.map(|v| format!("0x{v:0width$x}")).unwrap_or_default();
    let bytes = |v: [u8; 4]| v.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let (reth, atomic, bth) = (fields.reth, fields.atomic, fields.bth);
    let virtual_address = reth.map(|r| r.virtual_address).or(atomic.map(|a| a.virtual_address));
    let rkey = reth.map(|r| r.rkey).or(atomic.map(|a| a.rkey));
    // tshark 4.0 stops before the ICRC of a CNP.
    let crc = frame.last_chunk::<4>().map(|b| u64::from(u32::from_be_bytes(*b)));
    let (v4, v6) = match fields.path.source_ip {
        IpAddr::V4(a) => (a.to_string(), String::new()),
        IpAddr::V6(a) => (String::new(), a.to_string()),
    };
    vec![
        String::new(),
        v4,
        v6,
        fields.path.udp_source_port.to_string(),
        bth.opcode.0.to_string(),
        flag(bth.solicited),
        flag(bth.migreq),
        decimal(bth.pad.into()),
        decimal(bth.version.into()),
        decimal(bth.pkey.into()),
        hex(Some(bth.dest_qp.get().into()), 6),
        flag(bth.ack_request),
        decimal(bth.psn.get()),
        hex(virtual_address, 16),
        hex(rkey.map(|k| k.0.into()), 8),
        reth.map(|r| decimal(r.len)).unwrap_or_default(),
        fields.aeth.map(|a| decimal(a.syndrome.write().into())).unwrap_or_default(),
        fields.aeth.map(|a| decimal(a.msn.get())).unwrap_or_default(),
        hex(fields.deth.map(|d| d.qkey.into()), 16),
        hex(fields.deth.map(|d| d.source_qp.get().into()), 8),
        atomic.map(|a| a.swap_or_add.to_string()).unwrap_or_default(),
        atomic.map(|a| a.compare.to_string()).unwrap_or_default(),
        fields.atomic_ack.map(|a| a.original.to_string()).unwrap_or_default(),
        fields.immediate.map(bytes).unwrap_or_default(),
        fields.invalidate.map(|k| bytes(k.0.to_be_bytes())).unwrap_or_default(),
        hex(crc.filter(|_| bth.opcode != Opcode::CNP), 8),
    ]
}

#[test]
fn reads_every_field_of_every_kind_of_packet_as_we_wrote_it() {
    let packets = every_kind();
    let frames: Vec<_> = packets.iter().map(Fields::build).collect();
    let dissected = dissect(&capture(&frames), "kinds.pcap");
    assert_eq!(dissected.len(), packets.len());
    for ((fields, frame), dissected) in packets.iter().zip(&frames).zip(dissected) {
        let expected = expected(fields, frame);
        for ((name, found), expected) in FIELDS.iter().zip(&dissected).zip(&expected) {
            assert_eq!(found, expected, "{name} of {fields:?}");
        }
    }
}

#[test]
fn reports_a_packet_cut_in_its_headers_as_malformed() {
    // Shows that an empty `_ws.malformed` above is meaningful.
    let fields = every_kind().into_iter().find(|f| f.atomic.is_some()).unwrap();
    let mut frame = fields.build();
    frame.truncate(60);
    let dissected = dissect(&capture(&[frame]), "cut.pcap");
    assert_ne!(dissected[0][0], "");
}
