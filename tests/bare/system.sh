# To be sourced: a bare Debian in a directory. MIRROR picks a Debian mirror; the default is the one apt uses here.

# debian_mirror: print the mirror. Without output debootstrap falls back to its own default.
debian_mirror() {
    if [ -n "${MIRROR:-}" ]; then
        echo "$MIRROR"
    else
        apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' | sed -n 1p
    fi
}

# bare_system SUITE DIRECTORY: debootstrap, and what a site needs to reach its package mirrors (its certificate
# authorities, pip's configuration), carried in from the host.
bare_system() {
    local suite=$1 root=$2 file log mirror
    log=$(mktemp)
    mirror=$(debian_mirror)
    if ! debootstrap --variant=minbase "$suite" "$root" ${mirror:+"$mirror"} >"$log" 2>&1; then
        tail "$log" >&2
        rm -f "$log"
        return 3
    fi
    rm -f "$log"
    cp /etc/resolv.conf /etc/hosts "$root/etc/"
    mkdir -p "$root/usr/local/share/ca-certificates" "$root/etc/ssl/certs"
    cp -r /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
    for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
        [ ! -e "$file" ] || cp -L "$file" "$root$file"
    done
}

# clean_environment: what `env` is to set in such a system, one assignment a line.
clean_environment() {
    printf '%s\n' HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin "TERM=${TERM:-dumb}" LANG=C.UTF-8
    env | grep -E '^(PIP_|[a-z]+_proxy=)' || true
}
