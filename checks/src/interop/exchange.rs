//! A program and its peer, as command lines.

/// Which stack runs an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Our device, on this machine.
    Ours,
    /// The kernel's rxe, in the guest.
    Rxe,
}

impl End {
    /// The one at the other end.
    pub fn other(self) -> End {
        match self {
            End::Ours => End::Rxe,
            End::Rxe => End::Ours,
        }
    }
}

/// Which addresses the two have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The two command lines of a test. `{device}`, `{gid}`, `{own}` and `{peer}` stand for what an end
/// calls its device, the index of its address there, and the two addresses; `{port}` for a TCP port
/// that nobody else has; `{host}` for the peer's IPv4 address, whatever the family, where only a
/// TCP connection is made to it; `{probe}` for [`super::RxePeer::boot`]'s.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// What waits.
    pub server: String,
    /// What begins.
    pub client: String,
    /// The client connects a second time at once, while its server begins to listen for that: by
    /// RDMA-CM, perftest does.
    pub connects_twice: bool,
}

impl Exchange {
    /// perftest's programs, and those with its manners: the client's line is the server's and the
    /// server's address.
    pub fn perftest(line: &str) -> Self {
        // By RDMA-CM the client connects to the device, and by TCP to its machine.
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
