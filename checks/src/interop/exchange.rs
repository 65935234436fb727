//! Command lines of a program and its peer.

/// Stack of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Our device, on this machine.
    Ours,
    /// The kernel's rxe, in the guest.
    Rxe,
}

impl End {
    /// The opposite end.
    pub fn other(self) -> End {
        match self {
            End::Ours => End::Rxe,
            End::Rxe => End::Ours,
        }
    }
}

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The two command lines of a test. `{device}`, `{gid}`, `{own}` and `{peer}` stand for an end's
/// device, the index of its address there, and the two addresses; `{port}` for an unused TCP port;
/// `{host}` for the peer's IPv4 address, whatever the family, for a plain TCP connection; `{probe}`
/// for the program passed to [`super::RxePeer::boot`].
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The program that listens.
    pub server: String,
    /// The program that connects.
    pub client: String,
    /// The client connects a second time at once, while its server is about to listen for that, as
    /// perftest does by RDMA-CM.
    pub connects_twice: bool,
}

impl Exchange {
    /// perftest's programs and similar ones: the client's line is the server's with the server's
    /// address.
    pub fn perftest(line: &str) -> Self {
        // By RDMA-CM the client connects to the device, by TCP to its machine.
        let connects_twice = line.split_whitespace().any(|word| word == "-R");
        let server = if connects_twice { "{peer}" } else { "{host}" };
        let line = format!("{line} -F -d {{device}} -x {{gid}} -p {{port}}");
        Exchange { server: line.clone(), client: format!("{line} {server}"), connects_twice }
    }

    /// The probe, with `options` for both ends.
    pub fn probe(options: &str) -> Self {
        let line = format!("{{probe}} -d {{device}} -x {{gid}} -p {{port}} {options}");
        Exchange { server: line.clone(), client: format!("{line} {{host}}"), connects_twice: false }
    }

    /// libibverbs' examples.
    pub fn pingpong(line: &str) -> Self {
        let line = format!("{line} -d {{device}} -g {{gid}} -p {{port}}");
        Exchange { server: line.clone(), client: format!("{line} {{host}}"), connects_twice: false }
    }

    /// rping, with `options` for both ends.
    pub fn rping(options: &str) -> Self {
        Exchange {
            server: format!("rping -s -a {{own}} {options}"),
            client: format!("rping -c -a {{peer}} {options}"),
            connects_twice: false,
        }
    }
}
