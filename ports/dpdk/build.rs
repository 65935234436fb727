//! Compiles the shim against the installed libdpdk and links it; nothing without the feature
//! `libdpdk`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "libdpdk")]
    shim();
}

#[cfg(feature = "libdpdk")]
fn shim() {
    for file in ["src/shim.c", "src/shim.h"] {
        println!("cargo::rerun-if-changed={file}");
    }
    // Asked for first and linked last: the shim needs it.
    let found =
        pkg_config::Config::new().atleast_version("22.11").cargo_metadata(false).probe("libdpdk");
    let libdpdk = found
        .unwrap_or_else(|error| panic!("{error}\nDPDK is missing: apt-get install libdpdk-dev"));
    let mut build = cc::Build::new();
    build
        .file("src/shim.c")
        .includes(&libdpdk.include_paths)
        .opt_level(3)
        .warnings(true)
        .extra_warnings(true);
    // DPDK's headers are written for the least processor that it runs on.
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        build.flag("-march=corei7");
    }
    build.compile("longhaul_dpdk_shim");
    for path in &libdpdk.link_paths {
        println!("cargo::rustc-link-search=native={}", path.display());
    }
    for library in LIBRARIES {
        println!("cargo::rustc-link-lib={library}");
    }
}

/// Those that the shim calls into, of the sixty that pkg-config names: the others come as drivers,
/// when DPDK starts.
#[cfg(feature = "libdpdk")]
const LIBRARIES: [&str; 4] = ["rte_ethdev", "rte_mbuf", "rte_mempool", "rte_eal"];
