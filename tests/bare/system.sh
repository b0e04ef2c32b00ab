# Source this file to create a bare Debian system in a directory. MIRROR is the mirror (by default, apt's).

# debian_mirror: print the mirror. If it prints nothing, debootstrap uses its own default.
debian_mirror() {
    if [ -n "${MIRROR:-}" ]; then
        echo "$MIRROR"
    else
        apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' | sed -n 1p
    fi
}

# bare_system SUITE DIRECTORY: run debootstrap, and copy the host's configuration for package mirrors (certificate
# authorities, pip's configuration) into the new system.
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

# clean_environment: print the environment for commands in such a system, one assignment per line.
clean_environment() {
    printf '%s\n' HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin "TERM=${TERM:-dumb}" LANG=C.UTF-8
    env | grep -E '^(PIP_|[a-z]+_proxy=)' || true
}
